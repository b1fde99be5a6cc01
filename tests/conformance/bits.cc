// Bit for bit: results that must not depend on how they were asked for.
#include <chrono>
#include <cstdio>

#include "conformance/suites.h"

namespace headrace::testing {
namespace {

using Tensors = headrace_attention_tensors;
using Options = headrace_attention_options;

struct Bytes {
  std::vector<unsigned char> out, lse;
  bool operator==(const Bytes&) const = default;
};

// A part of a call: the same memory, fewer elements.
struct Part {
  Tensors tensors;
  Options options;
};

Bytes take(const Tensors& tensors) {
  Bytes bytes{take_written(tensors.out).bytes, {}};
  if (tensors.lse.rank > 0) bytes.lse = take_written(tensors.lse).bytes;
  return bytes;
}

void slice(headrace_tensor& view, int axis, std::int64_t begin, std::int64_t count,
           bool is_broadcast = false) {
  if (view.rank == 0 || (is_broadcast && view.shape[axis] == 1)) return;
  const auto part = TensorView(view).slice(axis, begin, begin + count);
  if (part) view = *part;
}

// Puts an axis of size 1 in front: a sequence of a ragged batch as a batch of one.
void add_batch_axis(headrace_tensor& view) {
  if (view.rank == 0) return;
  for (int i = view.rank; i > 0; --i) {
    view.shape[i] = view.shape[i - 1];
    view.strides[i] = view.strides[i - 1];
  }
  view.shape[0] = 1;
  view.strides[0] = 0;
  ++view.rank;
}

Part batch_entry(const Case& test_case, std::int64_t entry) {
  Part part{test_case.tensors(), test_case.options()};
  Tensors& t = part.tensors;
  for (headrace_tensor* view : {&t.q, &t.k, &t.v, &t.out, &t.lse, &t.tree_mask})
    slice(*view, 0, entry, 1);
  for (headrace_tensor* view : {&t.bias, &t.mask}) slice(*view, 0, entry, 1, true);
  if (t.alibi_slopes.rank == 2) slice(t.alibi_slopes, 0, entry, 1);
  return part;
}

Part ragged_sequence(const Case& test_case, const Sequence& sequence, std::int64_t entry) {
  Part part{test_case.tensors(), test_case.options()};
  Tensors& t = part.tensors;
  for (headrace_tensor* view : {&t.q, &t.out, &t.tree_mask})
    slice(*view, 0, sequence.row_q, sequence.seqlen_q);
  for (headrace_tensor* view : {&t.k, &t.v}) slice(*view, 0, sequence.row_k, sequence.seqlen_k);
  slice(t.lse, 1, sequence.row_q, sequence.seqlen_q);
  for (headrace_tensor* view : {&t.bias, &t.mask}) {
    slice(*view, 1, sequence.row_q, sequence.seqlen_q, true);
    slice(*view, 2, 0, sequence.seqlen_k, true);
  }
  if (t.alibi_slopes.rank == 2) slice(t.alibi_slopes, 0, entry, 1);
  t.cu_seqlens_q = t.cu_seqlens_k = headrace_tensor{};
  for (headrace_tensor* view : {&t.q, &t.k, &t.v, &t.out, &t.lse, &t.bias, &t.mask, &t.tree_mask})
    add_batch_axis(*view);
  part.options.max_seqlen_q = part.options.max_seqlen_k = 0;
  return part;
}

// Query `row` of a bottom-right causal prefill as a decode step: the keys up to its own.
Part decode_step(const Case& test_case, std::int64_t row, std::int64_t num_keys) {
  Part part{test_case.tensors(), test_case.options()};
  Tensors& t = part.tensors;
  for (headrace_tensor* view : {&t.q, &t.out}) slice(*view, 1, row, 1);
  for (headrace_tensor* view : {&t.k, &t.v}) slice(*view, 1, 0, num_keys);
  slice(t.lse, 2, row, 1);
  for (headrace_tensor* view : {&t.bias, &t.mask}) {
    slice(*view, 2, row, 1, true);
    slice(*view, 3, 0, num_keys, true);
  }
  return part;
}

class BitsRun {
 public:
  BitsRun(const Target& target, Report& report)
      : target_(target), kernel_(target.kernel->name), report_(report) {}

  void repeat_and_threads(const CaseName& name) {
    Case test_case(name);
    const Part whole{test_case.tensors(), test_case.options()};
    const Bytes first = run(name, whole, 1);
    expect_equal(name, "run twice", first, run(name, whole, 1));
    for (const int num_threads : {2, 3, 5, 16})
      expect_equal(name, "threads 1 and " + std::to_string(num_threads), first,
                   run(name, whole, num_threads));
  }

  void batch_entries(const CaseName& name) {
    Case test_case(name);
    for (std::int64_t entry = 0; entry < test_case.shape().batch; ++entry)
      compare_part(name, test_case, batch_entry(test_case, entry), "batch entry alone");
  }

  void ragged_sequences(const CaseName& name) {
    Case test_case(name);
    const Result<Call> call = make_call(test_case);
    if (!call.ok()) return;
    for (std::int64_t entry = 0; entry < test_case.shape().batch; ++entry) {
      const Sequence sequence = sequence_of(call.value().problem, call.value().args, entry);
      if (sequence.seqlen_q == 0) continue;
      compare_part(name, test_case, ragged_sequence(test_case, sequence, entry),
                   "ragged sequence alone");
    }
  }

  void strict_rows(const CaseName& name) {
    Case test_case(name);
    const Shape& s = test_case.shape();
    const std::int64_t step = std::max<std::int64_t>(s.seqlen_q / 6, 1);
    for (std::int64_t row = s.seqlen_q - 1; row >= 0; row -= step) {
      const std::int64_t num_keys = row + 1 + s.seqlen_k - s.seqlen_q;
      if (num_keys < 1) continue;
      compare_part(name, test_case, decode_step(test_case, row, num_keys),
                   "prefill row and decode row");
    }
  }

  std::int64_t num_comparisons() const { return num_comparisons_; }

 private:
  Bytes run(const CaseName& name, const Part& part, int num_threads) {
    const std::string replay = replay_line(kernel_, name);
    set_current_case(0, replay);
    Result<Call> call = make_call(part.tensors, part.options);
    std::string refusal;
    Status bad =
        call.ok() ? run_call(target_, call.value(), num_threads, &refusal) : Status(call.failure());
    if (bad) report_.failures.push_back({kernel_, describe(name.values), bad->message, replay});
    return take(part.tensors);
  }

  // The whole call wrote the part's elements; the part alone must write the same.
  void compare_part(const CaseName& name, const Case& test_case, const Part& part,
                    const char* what) {
    const Part whole{test_case.tensors(), test_case.options()};
    const std::string replay = replay_line(kernel_, name);
    set_current_case(0, replay);
    const Result<Call> call = make_call(whole.tensors, whole.options);
    std::string refusal;
    if (!call.ok() || run_call(target_, call.value(), name.values.number(Axis::threads), &refusal))
      report_.failures.push_back({kernel_, describe(name.values), "did not run", replay});
    const Bytes of_whole = take(part.tensors);
    take(whole.tensors);
    expect_equal(name, what, of_whole, run(name, part, name.values.number(Axis::threads)));
  }

  void expect_equal(const CaseName& name, const std::string& what, const Bytes& a, const Bytes& b) {
    ++num_comparisons_;
    if (a == b) return;
    const std::size_t bytes = dtype_bytes(static_cast<DType>(name.values[Axis::dtype]));
    std::size_t at = 0;
    while (at < a.out.size() && at < b.out.size() && a.out[at] == b.out[at]) ++at;
    report_.failures.push_back({kernel_, describe(name.values),
                                format_text("{}: {} differs from element {}", what,
                                            at < a.out.size() ? "out" : "lse", at / bytes),
                                replay_line(kernel_, name)});
  }

  const Target& target_;
  std::string kernel_;
  Report& report_;
  std::int64_t num_comparisons_ = 0;
};

// Random cases, changed so that a property of the contract applies to them.
template <class Adapt, class Check>
void check_property(BitsRun& run, std::size_t count, std::uint64_t seed, Adapt adapt, Check check) {
  Random random(seed);
  for (std::size_t i = 0; i < count;) {
    CaseName name = random_case(random);
    adapt(name.values);
    if (!is_possible(name.values)) continue;
    (run.*check)(name);
    ++i;
  }
}

void set(AxisValues& values, Axis axis, int value) {
  values.value[static_cast<std::size_t>(axis)] = static_cast<std::uint8_t>(value);
}

void check_all(BitsRun& run, std::size_t count, std::uint64_t seed) {
  check_property(
      run, count, seed + 1, [](AxisValues&) {}, &BitsRun::repeat_and_threads);
  check_property(
      run, count, seed + 2,
      [](AxisValues& v) {
        set(v, Axis::ragged, 0);
        set(v, Axis::dropout, 0);  // its random numbers count batch entries
        if (v[Axis::batch] == 0) set(v, Axis::batch, 2);
      },
      &BitsRun::batch_entries);
  check_property(
      run, count, seed + 3,
      [](AxisValues& v) {
        if (v[Axis::ragged] == 0) set(v, Axis::ragged, 1);
        set(v, Axis::dropout, 0);
        if (v[Axis::batch] == 0) set(v, Axis::batch, 2);
      },
      &BitsRun::ragged_sequences);
  check_property(
      run, count, seed + 4,
      [](AxisValues& v) {
        set(v, Axis::ragged, 0);
        set(v, Axis::dropout, 0);  // and queries
        set(v, Axis::tree_mask, 0);
        set(v, Axis::strict_rows, 1);
        set(v, Axis::causal, HEADRACE_CAUSAL_BOTTOM_RIGHT);
      },
      &BitsRun::strict_rows);
}

}  // namespace

Report run_bits(const SuiteOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  Report report;
  report.suite = "bits";
  for (const Target& target : chosen_targets(options)) {
    if (target.kernel->name == "cpu_reference" && options.kernel.empty()) continue;  // slow
    const std::size_t before = report.failures.size();
    BitsRun run(target, report);
    check_all(run, options.is_small ? 20 : 400, options.seed);
    report.checks.push_back({"bits", format_text("{} comparisons", run.num_comparisons()),
                             std::string(target.kernel->name),
                             report.failures.size() == before ? "ok" : "failed"});
  }
  set_current_case(0, "");
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace headrace::testing
