// SparQ attention on the device, whose first call's outputs are expected of all others. Whether
// they are right is for tests/cuda/sparq_test.cc: keys with almost equal estimates have no
// definition to compare with.
#pragma once

#include <string>
#include <vector>

#include "headrace/sparq.h"
#include "stress/repeated_call.h"

namespace headrace::testing {

// A row of the report.
struct SparqCell {
  DType dtype;
  bool has_codes;  // k and v are i8 with a scale for each key and head
};
std::vector<SparqCell> sparq_cells();
std::string row_name(const SparqCell& cell);

struct SparqStressCase {
  SparqCell cell;
  std::uint64_t seed = 0;  // of sizes and data
  std::int64_t num_kv_heads = 1, group = 1, head_dim = 64;
  std::int64_t page_size = 16, max_pages = 1;
  std::vector<std::int32_t> lengths = {};
  std::int64_t num_components = 8, num_keys = 64, local_window = 16;
  bool has_mean = false;
};
// From fewer keys than are chosen to many chunks for each CTA; few and many equal estimates.
SparqStressCase draw_case(const SparqCell& cell, std::uint64_t seed);
// "cuda_sparq bf16 codes, 8 x 20000, 32 over 8 heads, ... seed 17": fits a line.
std::string describe(const SparqStressCase& c);

class SparqStressCall final : public RepeatedCall {
 public:
  // Runs once and keeps the outputs as the expected ones.
  explicit SparqStressCall(const SparqStressCase& c);
  void run(cudaStream_t stream) override;
  void compare(Difference* differences, bool poisons_all, cudaStream_t stream) override;

 private:
  void make_keys(const SparqStressCase& c);

  DeviceMemory q_, k_, v_, k_scale_, v_scale_, components_, v_sum_, table_, lengths_, workspace_;
  std::size_t workspace_bytes_ = 0;
  headrace_quantised_kv codes_{};
  headrace_sparq_tensors tensors_{};
  headrace_sparq_options options_{};
};

}  // namespace headrace::testing
