// Inputs that have broken attention kernels before, each with its exact answer.
#pragma once

#include <string>
#include <vector>

#include "conformance/runner.h"

namespace headrace::testing {

// One named check on one kernel: what it builds, runs and finds.
class Check {
 public:
  explicit Check(const Target& target) : target_(target) {}

  void expect_true(bool ok, const std::string& text) {
    if (!ok) failures_.push_back(text);
  }
  // All rules on all rows.
  void judge_rows(Case& test_case, const std::string& label, bool must_be_finite = true);
  // Runs; the result as doubles in row-major order of out. Empty after a failure.
  struct Values {
    std::vector<double> out, lse;
    std::vector<unsigned char> bytes;
  };
  Values run(Case& test_case, const std::string& label);

  const Target& target() const { return target_; }
  const std::vector<std::string>& failures() const { return failures_; }
  bool is_reference() const { return target_.kernel->name == "cpu_reference"; }

 private:
  const Target& target_;
  std::vector<std::string> failures_;
};

// A dense case with every feature off, lse given, and normal data unless said otherwise.
struct PlainShape {
  DType dtype = DType::f32;
  std::int64_t batch = 1, seqlen_q = 1, seqlen_k = 1, num_heads = 1, num_kv_heads = 1;
  std::int64_t head_dim = 16, head_dim_v = 16;
};
CaseName plain_name(DType dtype, Data data = Data::normal);
Case plain_case(const PlainShape& shape, Data data = Data::normal);
Case plain_case(const PlainShape& shape, const CaseName& name);
// The same for a ragged batch.
Case ragged_case(const PlainShape& shape, const std::vector<std::int32_t>& lengths_q,
                 const std::vector<std::int32_t>& lengths_k, const CaseName& name);

// value(index of each axis) for every element of an input.
template <class Value>
void set_elements(Case& test_case, const headrace_tensor& view, Value value);
void set_element(const headrace_tensor& view, std::int64_t idx, double value);

// Strides of one element of a dense operand.
inline std::int64_t at(const headrace_tensor& view, std::int64_t b, std::int64_t row,
                       std::int64_t head, std::int64_t d) {
  return b * view.strides[0] + row * view.strides[1] + head * view.strides[2] + d;
}

using CheckFn = void (*)(Check&);
struct CatalogueEntry {
  const char* id;
  const char* title;
  CheckFn check;  // null: not applicable to a contiguous cache in CPU memory
};
std::vector<CatalogueEntry> value_checks();
std::vector<CatalogueEntry> exact_checks();
std::vector<CatalogueEntry> shape_checks();

template <class Value>
void set_elements(Case& test_case, const headrace_tensor& view, Value value) {
  test_case.unlock_inputs();
  std::int64_t n = 0;
  for_each_element(view, [&](std::int64_t idx) {
    std::int64_t index[HEADRACE_MAX_RANK] = {}, rest = n++;
    for (int axis = view.rank - 1; axis >= 0; --axis) {
      index[axis] = rest % view.shape[axis];
      rest /= view.shape[axis];
    }
    set_element(view, idx, value(index));
  });
}

}  // namespace headrace::testing
