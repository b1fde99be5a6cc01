// A case on the device: its tensors, its plan and the results of its first call.
#pragma once

#include <string>
#include <vector>

#include "attention/validate.h"
#include "core/kernel.h"
#include "stress/repeated_call.h"
#include "stress/stress_case.h"
#include "support/quantised_call.h"

namespace headrace::testing {

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
  void add_quantised();
  // Of the case's dtype, in that of the inputs.
  void* in_dtype(void* data, std::int64_t count);
  void* keep(std::int64_t bytes);

  const StressCase& case_;
  DType dtype_;
  std::vector<DeviceMemory> memory_;
  std::optional<MovedTensors> quantised_;
};

class StressCall final : public RepeatedCall {
 public:
  // Runs once and keeps the outputs as the expected ones. If the kernel refuses the case, refusal()
  // has the reason and nothing else may be called.
  StressCall(const StressCase& c, const Inputs& inputs, const Kernel& kernel,
             const DeviceInfo& device);

  const std::string& refusal() const { return refusal_; }
  // With the kernel's own choices or tuned ones, in turn: the bits are the same.
  void run(cudaStream_t stream) override;
  void compare(Difference* differences, bool poisons_all, cudaStream_t stream) override;

  // Compares the first outputs with `exact`, a call in double; empty: no wrong row.
  std::string compare_with(const StressCall& exact) const;

 private:
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
  DeviceMemory out_, lse_;  // backward: inputs
};

// The cell's kernel by name, in the list of its phase; null if there is none.
const Kernel* find_kernel(const Cell& cell);

}  // namespace headrace::testing
