#include "conformance/backward_checks.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

namespace headrace::testing {

bool GradientCheck::run(Case& test_case, const BackwardCall& call, GradientOutput& output,
                        int num_threads) {
  output = run_gradients(target, test_case, call, num_threads);
  failures.insert(failures.end(), output.failures.begin(), output.failures.end());
  num_refused += output.refusal.empty() ? 0 : 1;
  return output.refusal.empty() && output.failures.empty();
}

void GradientCheck::expect_bits(const GradientOutput& one, const GradientOutput& other,
                                const std::string& what) {
  ++num_compared;
  if (const char* name = other_bits(one, other))
    fail(format_text("{}: {} has different bits", what, name));
}

void GradientCheck::expect_near(double got, double exact, double limit, const std::string& what) {
  ++num_compared;
  if (!(std::abs(got - exact) <= limit) && failures.size() < 5)
    fail(format_text("{} is {} instead of {}, error bound {}", what, got, exact, limit));
}

void for_each_plain_lab(bool has_dlse, const std::function<void(Lab&)>& body) {
  for (const DType dtype : kDtypes) {
    for (const bool is_causal : {false, true}) {
      const Shape s = is_causal ? shape(dtype, 90, 70, 64, 4, 2, 2)  // has empty rows
                                : shape(dtype, 70, 130, 128);
      Lab lab(named(dtype, {{Axis::causal, is_causal ? 1 : 0}, {Axis::lse, has_dlse ? 1 : 0}}), s);
      lab.test_case.mutable_options().deterministic = 1;
      body(lab);
    }
  }
}

namespace {

// A copy of a tensor's elements in another memory layout.
class Copy {
 public:
  Copy(const headrace_tensor& from, const std::vector<std::int64_t>& strides, std::int64_t first,
       std::int64_t count)
      : memory_(static_cast<std::size_t>(count) * dtype_bytes(static_cast<DType>(from.dtype)),
                Guard::after, kNanByte),
        view_(from) {
    const auto dtype = static_cast<DType>(from.dtype);
    view_.data = memory_.data() + first * static_cast<std::int64_t>(dtype_bytes(dtype));
    std::copy(strides.begin(), strides.end(), view_.strides);
    std::vector<double> values;
    for_each_element(
        from, [&](std::int64_t i) { values.push_back(load_as_double(dtype, from.data, i)); });
    std::size_t n = 0;
    for_each_element(view_,
                     [&](std::int64_t i) { store_from_double(dtype, view_.data, i, values[n++]); });
  }
  const headrace_tensor& view() const { return view_; }

 private:
  GuardedBuffer memory_;
  headrace_tensor view_;
};

// B4. dout as [batch, heads, seqlen, dim], padded, with negative strides, misaligned: equal bits.
void layouts_of_dout(GradientCheck& check) {
  for_each_plain_lab(false, [&](Lab& lab) {
    lab.test_case.make_gradients();
    BackwardCall call = backward_call(lab.test_case);
    GradientOutput plain;
    if (!check.run(lab.test_case, call, plain)) return;
    const headrace_tensor dout = call.gradients.dout;
    const std::int64_t b = dout.shape[0], n = dout.shape[1], h = dout.shape[2], d = dout.shape[3];
    const std::int64_t all = b * n * h * d;
    const Copy copies[] = {
        {dout, {n * h * d, d, n * d, 1}, 0, all},                                  // transposed
        {dout, {n * h * (d + 8), h * (d + 8), d + 8, 1}, 0, b * n * h * (d + 8)},  // with gaps
        {dout, {n * h * d, -h * d, d, 1}, (n - 1) * h * d, all},                   // backwards
        {dout, {n * h * d, h * d, d, 1}, 1, all + 1},                              // an element off
    };
    for (const Copy& copy : copies) {
      call.gradients.dout = copy.view();
      GradientOutput other;
      if (check.run(lab.test_case, call, other))
        check.expect_bits(plain, other, "dout in another layout");
    }
  });
}

// B4. dout with stride 0 along queries, as the gradient of a sum.
void expanded_dout(GradientCheck& check) {
  for_each_plain_lab(false, [&](Lab& lab) {
    lab.test_case.make_gradients();
    BackwardCall call = backward_call(lab.test_case);
    const headrace_tensor dout = call.gradients.dout;
    headrace_tensor row = dout;
    row.strides[0] = row.strides[1] = 0;
    const std::int64_t n = dout.shape[1], h = dout.shape[2], d = dout.shape[3];
    const Copy written(row, {n * h * d, h * d, d, 1}, 0, dout.shape[0] * n * h * d);
    GradientOutput expanded, contiguous;
    call.gradients.dout = row;
    if (!check.run(lab.test_case, call, expanded)) return;
    call.gradients.dout = written.view();
    if (check.run(lab.test_case, call, contiguous))
      check.expect_bits(contiguous, expanded, "dout with stride 0");
  });
}

// B4n. NaN in unseen keys does not change results of CPU kernels, although the keys share vectors,
// tiles and pairs with others. (Tensor cores multiply whole tiles, and 0 * NaN is NaN.)
void nan_in_unseen_keys(GradientCheck& check) {
  if (is_on_gpu(check.target)) {
    ++check.num_refused;
    return;
  }
  struct Mask {
    std::int64_t seqlen_q;
    int causal;
    std::int64_t window_left, first, end;  // keys seen by at least one query
  };
  constexpr std::int64_t kSeqlenK = 250;
  constexpr Mask kMasks[] = {{51, HEADRACE_CAUSAL_TOP_LEFT, -1, 0, 51},
                             {120, HEADRACE_CAUSAL_TOP_LEFT, 7, 0, 120},
                             {50, HEADRACE_CAUSAL_BOTTOM_RIGHT, 29, 171, kSeqlenK},
                             {51, HEADRACE_CAUSAL_NONE, 29, 170, kSeqlenK}};
  for (const DType dtype : kDtypes) {
    for (const Mask& mask : kMasks) {
      Lab lab(named(dtype, {}), shape(dtype, mask.seqlen_q, kSeqlenK, 40));
      lab.test_case.mutable_options().causal = mask.causal;
      lab.test_case.mutable_options().window_left = mask.window_left;
      lab.test_case.make_gradients();
      const BackwardCall call = backward_call(lab.test_case);
      GradientOutput plain, poisoned;
      if (!check.run(lab.test_case, call, plain)) continue;
      lab.test_case.unlock_inputs();
      for (const headrace_tensor& x : {lab.tensors().k, lab.tensors().v}) {
        const std::int64_t row_elements = x.shape[2] * x.shape[3];
        std::int64_t n = 0;
        for_each_element(x, [&](std::int64_t i) {
          const std::int64_t key = n++ / row_elements % kSeqlenK;
          if (key < mask.first || key >= mask.end) store_from_double(dtype, x.data, i, kNan);
        });
      }
      if (check.run(lab.test_case, call, poisoned))
        check.expect_bits(plain, poisoned, "NaN in keys that no query sees");
    }
  }
}

// B6. A dlse of zeros equals no dlse.
void zero_dlse(GradientCheck& check) {
  for_each_plain_lab(true, [&](Lab& lab) {
    lab.test_case.make_gradients();
    lab.test_case.unlock_inputs();
    lab.fill(lab.test_case.gradients().dlse, [](const Index&) { return 0.0; });
    BackwardCall call = backward_call(lab.test_case);
    GradientOutput zero, none;
    if (!check.run(lab.test_case, call, zero)) return;
    call.gradients.dlse = headrace_tensor{};
    if (check.run(lab.test_case, call, none)) check.expect_bits(zero, none, "dlse of zeros");
  });
}

// ---- B7: repeated runs

struct Repeated {
  DType dtype;
  std::int64_t head_dim;
  Setting mask;
  bool is_ragged;
};
constexpr Repeated kRepeated[] = {
    {DType::bf16, 64, {Axis::causal, 1}, false},
    {DType::bf16, 128, {Axis::window, static_cast<int>(Window::both)}, false},
    {DType::f16, 64, {Axis::causal, 1}, true},
    {DType::bf16, 64, {Axis::window, static_cast<int>(Window::both)}, true},
    {DType::f32, 32, {Axis::causal, 0}, false},
    {DType::f16, 256, {Axis::causal, 1}, false},
};

Lab make_lab(const Repeated& one, bool is_on_gpu) {
  // Several tiles per side: GPU tiles are larger and more of them run at once.
  const std::int64_t n = is_on_gpu ? 500 : 60, heads = is_on_gpu ? 8 : 2;
  Shape s = shape(one.dtype, n, 2 * n - 20, one.head_dim, heads, heads / 2, is_on_gpu ? 3 : 1);
  if (one.is_ragged) {
    s.is_ragged = true;
    s.batch = 3;
    s.lengths_q = {static_cast<std::int32_t>(n / 3), 1, static_cast<std::int32_t>(n)};
    s.lengths_k = {static_cast<std::int32_t>(s.seqlen_k), 7, static_cast<std::int32_t>(n / 2)};
    s.total_q = n / 3 + 1 + n;
    s.total_k = s.seqlen_k + 7 + n / 2;
  }
  const int ragged = one.is_ragged ? static_cast<int>(RaggedKind::random) : 0;
  Lab lab(named(one.dtype, {one.mask, {Axis::ragged, ragged}}), s);
  lab.test_case.mutable_options().deterministic = 1;
  lab.test_case.make_gradients();
  return lab;
}

std::uint64_t hash_of(std::uint64_t hash, const GradientOutput& output) {  // FNV-1a
  for (const auto& bytes : output.bytes)
    for (const unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001B3u;
  return hash;
}

void many_runs(GradientCheck& check) {
  const int num_runs = check.tier == Tier::small ? 100 : 1000;
  check.fingerprint = 0xCBF29CE484222325u;
  for (const Repeated& one : kRepeated) {
    Lab lab = make_lab(one, is_on_gpu(check.target));
    const BackwardCall call = backward_call(lab.test_case);
    GradientOutput first;
    if (!check.run(lab.test_case, call, first, 1)) continue;
    check.fingerprint = hash_of(check.fingerprint, first);
    for (int i = 1; i < num_runs && check.failures.empty(); ++i) {
      GradientOutput again;
      if (check.run(lab.test_case, call, again, 1 + i % 3))
        check.expect_bits(first, again, format_text("run {}", i));
    }
  }
}

struct Entry {
  const char* id;
  const char* title;
  void (*run)(GradientCheck&);
};
constexpr Entry kEntries[] = {
    {"B4", "dout transposed, padded, negative strides, misaligned: equal bits", layouts_of_dout},
    {"B4e", "dout with stride 0: equal bits as the materialized rows", expanded_dout},
    {"B4n", "NaN in keys that no query sees, on the CPU: equal bits", nan_in_unseen_keys},
    {"B6z", "a dlse of zeros equals no dlse, bit for bit", zero_dlse},
    {"B7", "hundreds of runs, dense and ragged, causal and local: equal bits", many_runs},
    {"I1", "rows of dS sum to the gradient of lse", score_gradients_sum_to_dlse},
    {"I2", "rowsum(dO * O) is D: equal values give no dq and no dk",
     equal_values_give_no_score_gradient},
    {"I3", "dv sums to dout", value_gradients_sum_to_dout},
    {"I4", "sum of q * dq is the sum of k * dk", scaling_q_is_scaling_k},
    {"I5", "twice dout gives twice the gradient, bit for bit", twice_dout_twice_the_gradient},
    {"I6", "dsinks is the sum of exp(sink - lse) (dlse - rowsum(dO * O))", sinks_see_rowsums},
    {"I7", "columns of zeros in K give columns of zeros in dq", zero_columns_of_k_give_zeros},
};

void run_entry(const Entry& entry, GradientCheck& check, Report& report) {
  const std::string kernel(check.target.kernel->name);
  const std::string replay =
      format_text("headrace_conformance --suite backward --only {} --kernel {}", entry.id, kernel);
  set_current_case(0, replay);
  entry.run(check);
  if (check.num_compared == 0 && check.num_refused == 0) check.fail("nothing was compared");
  std::string title = format_text("{}, {} comparisons, {} refused", entry.title, check.num_compared,
                                  check.num_refused);
  if (check.fingerprint != 0) {
    char text[32];
    std::snprintf(text, sizeof text, ", bits %016" PRIx64, check.fingerprint);
    title += text;
  }
  const char* status = !check.failures.empty()  ? "failed"
                       : check.num_compared > 0 ? "ok"
                                                : "refused";
  report.checks.push_back({entry.id, title, kernel, status});
  for (const std::string& text : check.failures)
    report.failures.push_back({kernel, entry.id, text, replay});
}

}  // namespace

void run_backward_checks(const SuiteOptions& options, const std::vector<Target>& targets,
                         Report& report) {
  int n = 0;
  for (const Target& target : targets) {
    if (target.kernel->name == "cpu_reference") continue;  // it is the oracle
    for (const Entry& entry : kEntries) {
      if (!options.only.empty() && options.only != entry.id) continue;
      if (n++ % options.num_shards != options.shard) continue;
      GradientCheck check(target, options.tier);
      run_entry(entry, check, report);
    }
  }
  set_current_case(0, "");
}

}  // namespace headrace::testing
