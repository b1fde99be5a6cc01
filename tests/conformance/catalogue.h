// Building blocks of the catalogue: cases whose inputs the test writes itself, and a collector of
// failures.
#pragma once

#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "conformance/suites.h"
#include "core/dtype.h"

namespace headrace::testing {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
inline constexpr DType kDtypes[] = {DType::f32, DType::f16, DType::bf16};

using Setting = std::pair<Axis, int>;

inline CaseName named(DType dtype, std::initializer_list<Setting> settings) {
  CaseName name{};
  name.seed = 1;
  name.values.value[static_cast<std::size_t>(Axis::dtype)] = static_cast<std::uint8_t>(dtype);
  name.values.value[static_cast<std::size_t>(Axis::lse)] = 1;
  for (const auto& [axis, value] : settings)
    name.values.value[static_cast<std::size_t>(axis)] = static_cast<std::uint8_t>(value);
  return name;
}

inline Shape shape(DType dtype, std::int64_t seqlen_q, std::int64_t seqlen_k, std::int64_t head_dim,
                   std::int64_t num_heads = 2, std::int64_t num_kv_heads = 1,
                   std::int64_t batch = 1) {
  Shape s;
  s.dtype = dtype;
  s.batch = batch;
  s.seqlen_q = seqlen_q;
  s.seqlen_k = seqlen_k;
  s.num_heads = num_heads;
  s.num_kv_heads = num_kv_heads;
  s.head_dim = s.head_dim_v = head_dim;
  return s;
}

// Index of an element: [batch, row, head, column] of q, k, v; [batch, head, query, key] of bias and
// mask.
using Index = std::array<std::int64_t, 4>;
using Fill = std::function<double(const Index&)>;

// A case whose inputs the test writes itself.
class Lab {
 public:
  Lab(const CaseName& name, const Shape& s) : test_case(name, s) { test_case.unlock_inputs(); }

  void fill(const headrace_tensor& x, const Fill& value) {
    Index i{};
    double largest = 0;
    for_each_element(x, [&](std::int64_t offset) {
      const double v = value(i);
      if (std::isfinite(v)) largest = std::max(largest, std::abs(v));
      if (x.dtype == HEADRACE_BOOL) {
        static_cast<unsigned char*>(x.data)[offset] = v != 0;
      } else {
        store_from_double(static_cast<DType>(x.dtype), x.data, offset, v);
      }
      for (int axis = x.rank - 1; axis >= 0 && ++i[static_cast<std::size_t>(axis)] == x.shape[axis];
           --axis)
        i[static_cast<std::size_t>(axis)] = 0;
    });
    if (x.data == tensors().v.data) test_case.set_largest_v(largest);
  }
  const headrace_attention_tensors& tensors() const { return test_case.tensors(); }

  Case test_case;
};

// One entry on one kernel: collects failures.
class Check {
 public:
  explicit Check(const Target& on) : target(on) {}
  // Judges every row by every rule.
  void judge_all(Lab& lab) {
    Result<Call> call = make_call(lab.test_case);
    if (!call.ok()) return fail("invalid: " + call.failure().message);
    // Other rules need finite results; R5 compares the NaNs that an entry expects.
    const CaseResult result = judge(target_for(call.value()), lab.test_case,
                                    expect(lab.test_case, call.value(), true), !allow_nan);
    for (const std::string& text : result.failures) fail(text);
  }
  RunOutput run(Lab& lab, int num_threads = 2) {
    Result<Call> call = make_call(lab.test_case);
    return run_kernel(call.ok() ? target_for(call.value()) : target, lab.test_case, num_threads);
  }
  bool takes(const Lab& lab) const {
    Result<Call> call = make_call(lab.test_case);
    return call.ok() && target.kernel->refuses(call.value().problem, target.device).empty();
  }
  void fail(const std::string& text) { failures.push_back(text); }
  void expect_equal(double got, double expected, const std::string& what) {
    if (got == expected || (std::isnan(got) && std::isnan(expected))) return;
    fail(format_text("{} is {} instead of {}", what, got, expected));
  }

  const Target& target;
  bool allow_nan = false;
  int num_taken = 0, num_refused = 0;  // runs of the kernel; runs of the fallback
  std::vector<std::string> failures;

 private:
  // The kernel, or if it refuses the fallback of its list, as a plan would select.
  Target target_for(const Call& call) {
    if (target.kernel->refuses(call.problem, target.device).empty()) {
      ++num_taken;
      return target;
    }
    ++num_refused;
    return {last_kernel(target), target.device};
  }
};

// catalogue_layouts.cc
void same_bits_in_every_layout(Check& check);
void ragged_splits(Check& check);
void few_rows_over_many_keys(Check& check);

// catalogue_numbers.cc
void very_negative_scores(Check& check);
void sloping_scores(Check& check);
void masked_key_with_huge_score(Check& check);
void large_inputs_at_short_lengths(Check& check);
void empty_rows(Check& check);
void least_bias(Check& check);
void infinite_sinks(Check& check);
void nan_in_a_live_key(Check& check);
void nan_in_a_live_value(Check& check);
void infinite_scores(Check& check);
void ends_of_the_format(Check& check);
void few_keys_and_columns(Check& check);
void window_edges(Check& check);
void needles(Check& check);
void integers(Check& check);

}  // namespace headrace::testing
