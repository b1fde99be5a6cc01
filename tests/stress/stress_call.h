// A case on the device: its tensors, its plan and the results of its first call.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <vector>

#include "attention/validate.h"
#include "core/kernel.h"
#include "stress/device_work.h"
#include "stress/stress_case.h"

namespace headrace::testing {

// Throws std::runtime_error with CUDA's error name.
void require(cudaError_t error, const char* doing);
void require(const Status& status, const char* doing);

struct FreeOnDevice {
  void operator()(void* data) const { cudaFree(data); }
};
using DeviceMemory = std::unique_ptr<void, FreeOnDevice>;
DeviceMemory allocate(std::int64_t bytes);

// The inputs of all calls of a case. With `dtype` f64 the values are those of the case's dtype.
class Inputs {
 public:
  Inputs(const StressCase& c, DType dtype);

  headrace_attention_tensors tensors;  // without outputs
  headrace_tensor dout{};
  headrace_tensor view(void* data, DType dtype, std::int64_t heads, int dim, bool is_query) const;
  headrace_tensor lse_view(void* data, DType dtype) const;

 private:
  headrace_tensor add_operand(std::int64_t heads, int dim, bool is_query, std::uint64_t seed,
                              float size);
  void add_scores_operands();
  void* keep(std::int64_t bytes);

  const StressCase& case_;
  DType dtype_;
  std::vector<DeviceMemory> memory_;
};

// An output and its expected value.
struct Output {
  const char* name;
  headrace_tensor view;
  std::int64_t bytes, rows;
  int dim;
  bool has_fixed_bits;
  DeviceMemory got, expected;
  float largest;  // max |expected|, for sums in no fixed order
};

class StressCall {
 public:
  static constexpr int kMostOutputs = 3;

  // Runs once and keeps the outputs as the expected ones. If the kernel refuses the case, refusal()
  // has the reason and nothing else may be called.
  StressCall(const StressCase& c, const Inputs& inputs, const Kernel& kernel,
             const DeviceInfo& device);

  const std::string& refusal() const { return refusal_; }
  // With the kernel's own choices or tuned ones, in turn: the bits are the same.
  void run(cudaStream_t stream);
  // Compares all outputs, then poisons them and optionally the workspace. differences: one per
  // output.
  void compare(Difference* differences, bool poisons_workspace, cudaStream_t stream);
  const std::vector<Output>& outputs() const { return outputs_; }
  // "65 words of out differ, the first at batch 3, row 17, head 2"; empty: none.
  std::string describe(const Difference* differences) const;

  // Compares the first outputs with `exact`, a call in double; empty: no wrong row.
  std::string compare_with(const StressCall& exact) const;

 private:
  void add_output(const char* name, headrace_tensor view, int dim, bool has_fixed_bits);
  void run_forward_once(const DeviceInfo& device);

  const StressCase& case_;
  std::string refusal_;
  std::vector<Plan> plans_;  // the first with the kernel's own choices
  std::size_t num_runs_ = 0;
  headrace_attention_tensors tensors_;
  headrace_attention_gradients gradients_{};
  AttentionArgs args_;
  DeviceMemory workspace_;
  std::size_t workspace_bytes_ = 0;
  std::vector<Output> outputs_;
  DeviceMemory out_, lse_;  // backward: inputs
};

// The cell's kernel by name, in the list of its phase; null if there is none.
const Kernel* find_kernel(const Cell& cell);

}  // namespace headrace::testing
