// Bit for bit: results that must not depend on how they were asked for. Random cases of the grid,
// each run in several ways; what the output memory holds afterwards must be the same bytes.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>

#include "conformance/suites.h"
#include "headrace/tensor.hpp"

namespace headrace::testing {
namespace {

constexpr int kCases = 600, kSmallCases = 60;
constexpr int kThreads[] = {1, 2, 3, 5, 16};

// Rows [begin, begin + count) of an axis, where there is such an axis to speak of: absent and
// broadcast operands stay.
headrace_tensor sliced(const headrace_tensor& x, int axis, std::int64_t begin, std::int64_t count) {
  if (x.rank == 0 || x.shape[axis] == 1) return x;
  return *TensorView(x).slice(axis, begin, begin + count);
}

// A ragged operand's rows of one sequence, with a batch axis of one entry in front. Bias and mask
// may broadcast: an axis of one element stays then, also where the sequence has no rows.
headrace_tensor alone(const headrace_tensor& x, int axis, std::int64_t begin, std::int64_t count,
                      bool may_broadcast = false) {
  if (x.rank == 0) return x;
  headrace_tensor y = may_broadcast ? sliced(x, axis, begin, count)
                                    : *TensorView(x).slice(axis, begin, begin + count);
  std::copy_backward(y.shape, y.shape + y.rank, y.shape + y.rank + 1);
  std::copy_backward(y.strides, y.strides + y.rank, y.strides + y.rank + 1);
  y.shape[0] = 1;
  y.strides[0] = 0;
  ++y.rank;
  return y;
}

// Entry `b` of a dense batch as a batch of one.
headrace_attention_tensors batch_entry(const headrace_attention_tensors& t, std::int64_t b) {
  headrace_attention_tensors one = t;
  for (auto member : {&headrace_attention_tensors::q, &headrace_attention_tensors::k,
                      &headrace_attention_tensors::v, &headrace_attention_tensors::out,
                      &headrace_attention_tensors::lse, &headrace_attention_tensors::bias,
                      &headrace_attention_tensors::mask, &headrace_attention_tensors::tree_mask})
    one.*member = sliced(t.*member, 0, b, 1);
  if (t.alibi_slopes.rank == 2) one.alibi_slopes = sliced(t.alibi_slopes, 0, b, 1);
  return one;
}

// Sequence `b` of a ragged batch as a dense batch of one.
headrace_attention_tensors sequence_alone(const headrace_attention_tensors& t, const Shape& s,
                                          std::size_t b) {
  std::int64_t q = 0, k = 0;
  for (std::size_t i = 0; i < b; ++i) {
    q += s.lengths_q[i];
    k += s.lengths_k[i];
  }
  headrace_attention_tensors one = t;
  one.cu_seqlens_q = one.cu_seqlens_k = headrace_tensor{};
  one.q = alone(t.q, 0, q, s.lengths_q[b]);
  one.out = alone(t.out, 0, q, s.lengths_q[b]);
  one.k = alone(t.k, 0, k, s.lengths_k[b]);
  one.v = alone(t.v, 0, k, s.lengths_k[b]);
  one.lse = alone(t.lse, 1, q, s.lengths_q[b]);
  one.bias = alone(sliced(t.bias, 2, 0, s.lengths_k[b]), 1, q, s.lengths_q[b], true);
  one.mask = alone(sliced(t.mask, 2, 0, s.lengths_k[b]), 1, q, s.lengths_q[b], true);
  one.tree_mask = alone(t.tree_mask, 0, q, s.lengths_q[b]);
  if (t.alibi_slopes.rank == 2)
    one.alibi_slopes = sliced(t.alibi_slopes, 0, static_cast<std::int64_t>(b), 1);
  return one;
}

// Query `i` of a dense, bottom-right causal batch as the decode step that would have computed it.
headrace_attention_tensors decode_step(const headrace_attention_tensors& t, const Shape& s,
                                       std::int64_t i) {
  const std::int64_t keys = i + 1 + s.seqlen_k - s.seqlen_q;
  headrace_attention_tensors one = t;
  one.q = sliced(t.q, 1, i, 1);
  one.out = sliced(t.out, 1, i, 1);
  one.k = sliced(t.k, 1, 0, keys);
  one.v = sliced(t.v, 1, 0, keys);
  one.lse = sliced(t.lse, 2, i, 1);
  one.bias = sliced(sliced(t.bias, 2, i, 1), 3, 0, keys);
  one.mask = sliced(sliced(t.mask, 2, i, 1), 3, 0, keys);
  return one;
}

struct Bytes {
  std::vector<unsigned char> out, lse;
  std::string failure;
  bool operator==(const Bytes&) const = default;
};

// Runs tensors whose outputs lie in the case's memory; reads (and resets) what was written there.
Bytes run_bytes(const Target& target, Case& test_case, const headrace_attention_tensors& tensors,
                const headrace_attention_options& options, int num_threads) {
  Bytes bytes;
  const Result<Problem> problem = validate(tensors, options);
  if (!problem.ok()) {
    bytes.failure = Result<Problem>(problem).failure().message;
    return bytes;
  }
  Plan plan;
  plan.problem = problem.value();
  plan.device = target.device;
  plan.device.num_units = num_threads;
  plan.kernel = target.kernel;
  plan.schedule = target.kernel->plan(plan.problem, plan.device);
  test_case.reset_outputs();
  if (Status bad = run_plan(plan, tensors, options)) bytes.failure = bad->message;
  bytes.out = take_written(tensors.out).bytes;
  if (tensors.lse.rank != 0) bytes.lse = take_written(tensors.lse).bytes;
  return bytes;
}

// The same elements out of a whole result: what `part` (a view into `whole`'s memory) would hold.
std::vector<unsigned char> part_of(const headrace_tensor& whole,
                                   const std::vector<unsigned char>& bytes,
                                   const headrace_tensor& part) {
  if (part.rank == 0) return {};
  const auto size = static_cast<std::int64_t>(dtype_bytes(static_cast<DType>(whole.dtype)));
  std::vector<std::pair<const unsigned char*, std::int64_t>>
      where;  // address of each element, its place in `bytes`
  for_each_element(whole, [&](std::int64_t idx) {
    where.emplace_back(static_cast<unsigned char*>(whole.data) + idx * size,
                       static_cast<std::int64_t>(where.size()));
  });
  std::sort(where.begin(), where.end());
  std::vector<unsigned char> found;
  for_each_element(part, [&](std::int64_t idx) {
    const unsigned char* address = static_cast<unsigned char*>(part.data) + idx * size;
    const auto at =
        std::lower_bound(where.begin(), where.end(), std::make_pair(address, std::int64_t{0}));
    const unsigned char* from = bytes.data() + at->second * size;
    found.insert(found.end(), from, from + size);
  });
  return found;
}

// Counts and failures of one class of equality on one kernel.
struct Class {
  const char* id;
  const char* title;
  std::int64_t num_compared = 0, num_failed = 0;
};

class BitsOfKernel {
 public:
  BitsOfKernel(const Target& target, Report& report) : target_(target), report_(report) {}

  void check(const CaseName& name) {
    Case test_case(name);
    const Bytes whole = run_bytes(target_, test_case, test_case.tensors(), test_case.options(), 1);
    compare(repeat_, name, whole,
            run_bytes(target_, test_case, test_case.tensors(), test_case.options(), 1));
    for (const int num_threads : kThreads)
      compare(threads_, name, whole,
              run_bytes(target_, test_case, test_case.tensors(), test_case.options(), num_threads));
    if (name.values[Axis::dropout] == 0) check_alone(ragged_, test_case, whole);
    if (name.seed % 3 == 0) check_splits(name);
    check_decode(name);
  }

  void finish() {
    for (const Class* c : {&repeat_, &threads_, &batch_, &ragged_, &splits_, &decode_}) {
      const bool ok = c->num_failed == 0 && c->num_compared > 0;
      report_.checks.push_back(
          {c->id, std::string(c->title) + ", " + std::to_string(c->num_compared) + " comparisons",
           std::string(target_.kernel->name), ok ? "ok" : "failed"});
      if (c->num_compared == 0)
        report_.failures.push_back(
            {std::string(target_.kernel->name), c->id, "nothing was compared", ""});
    }
  }

 private:
  void compare(Class& c, const CaseName& name, const Bytes& expected, const Bytes& got) {
    ++c.num_compared;
    if (expected == got && got.failure.empty()) return;
    ++c.num_failed;
    report_.failures.push_back({std::string(target_.kernel->name),
                                std::string(c.id) + " " + describe(name.values),
                                got.failure.empty() ? "other bits" : got.failure,
                                replay_line(std::string(target_.kernel->name), name)});
  }

  void compare_part(Class& c, Case& test_case, const Bytes& whole,
                    const headrace_attention_tensors& part,
                    const headrace_attention_options& options) {
    const headrace_attention_tensors& all = test_case.tensors();
    const Bytes expected{part_of(all.out, whole.out, part.out),
                         part_of(all.lse, whole.lse, part.lse), ""};
    compare(c, test_case.name(), expected, run_bytes(target_, test_case, part, options, 2));
  }

  bool is_refused(const Case& test_case) const {
    return !target_.kernel->refuses(make_call(test_case).value().problem, target_.device).empty();
  }

  // One sequence of the batch, as if the others were not there.
  void check_alone(Class& ragged, Case& test_case, const Bytes& whole) {
    const Shape& s = test_case.shape();
    if (s.batch < 2 || whole.out.empty()) return;
    const auto b =
        static_cast<std::size_t>(test_case.name().seed) % static_cast<std::size_t>(s.batch);
    if (!s.is_ragged) {
      compare_part(batch_, test_case, whole,
                   batch_entry(test_case.tensors(), static_cast<std::int64_t>(b)),
                   test_case.options());
    } else if (s.lengths_q[b] > 0) {
      headrace_attention_options options = test_case.options();
      options.max_seqlen_q = options.max_seqlen_k = 0;
      compare_part(ragged, test_case, whole, sequence_alone(test_case.tensors(), s, b), options);
    }
  }

  // Where keys are split, they are by the length of their own sequence and not of the longest.
  void check_splits(CaseName name) {
    const std::pair<Axis, int> values[] = {
        {Axis::lengths, static_cast<int>(Lengths::long_keys)},
        {Axis::batch, 1 + name.seed / 8 % 3},  // more than one entry
        {Axis::ragged, static_cast<int>(RaggedKind::random)},
        {Axis::num_splits, 2 + name.seed / 4 % 2},  // more than one split
        {Axis::dropout, 0},
        {Axis::strict_rows, 0}};
    for (const auto& [axis, value] : values)
      name.values.value[static_cast<std::size_t>(axis)] = static_cast<std::uint8_t>(value);
    Case test_case(name);
    if (is_refused(test_case)) return;
    check_alone(splits_, test_case,
                run_bytes(target_, test_case, test_case.tensors(), test_case.options(), 1));
  }

  // strict_rows: a row of a causal prefill equals the decode step that computes it.
  void check_decode(CaseName name) {
    name.values.value[static_cast<std::size_t>(Axis::causal)] = 1;
    name.values.value[static_cast<std::size_t>(Axis::strict_rows)] = 1;
    for (const Axis off : {Axis::ragged, Axis::tree_mask, Axis::dropout, Axis::num_splits})
      name.values.value[static_cast<std::size_t>(off)] = 0;
    Case test_case(name);
    const Shape& s = test_case.shape();
    if (s.seqlen_q == 0 || is_refused(test_case)) return;  // other values, another head_dim_v
    const std::int64_t i = name.seed % s.seqlen_q;
    if (i + 1 + s.seqlen_k - s.seqlen_q <= 0) return;
    const Bytes whole = run_bytes(target_, test_case, test_case.tensors(), test_case.options(), 2);
    compare_part(decode_, test_case, whole, decode_step(test_case.tensors(), s, i),
                 test_case.options());
  }

  const Target& target_;
  Report& report_;
  Class repeat_{"repeat", "the same call twice"};
  Class threads_{"threads", "1, 2, 3, 5 and 16 threads"};
  Class batch_{"batch", "a batch entry alone"};
  Class ragged_{"ragged", "a ragged sequence alone, as a dense batch of one"};
  Class splits_{"splits", "the same where keys are split"};
  Class decode_{"strict_rows", "a prefill row and its decode step"};
};

}  // namespace

Report run_bits(const SuiteOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  Report report;
  report.suite = "bits";
  for (const Target& target : chosen_targets(options)) {
    if (target.kernel->name == "cpu_reference") continue;  // a plain loop, nothing to depend on
    Random random(options.seed * 1000003u);
    BitsOfKernel kernel(target, report);
    for (int left = options.is_small ? kSmallCases : kCases; left > 0;) {
      const CaseName name = random_case(random);
      Case test_case(name);
      const Call call = make_call(test_case).value();
      if (!target.kernel->refuses(call.problem, target.device).empty()) continue;
      kernel.check(name);
      --left;
    }
    kernel.finish();
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace headrace::testing
