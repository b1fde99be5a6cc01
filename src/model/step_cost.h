// What a step of a decoder moves and computes, operator by operator: a prediction that needs
// neither weights nor the device.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "core/device.h"
#include "core/dtype.h"
#include "weights/model_file.h"

namespace headrace::model {

struct StepShape {
  std::int64_t num_seqs = 1;
  std::int64_t seqlen_q = 1;  // tokens of each sequence in this step
  std::int64_t seqlen_k = 1;  // tokens of each sequence after this step
  DType cache_dtype = DType::f16;
  std::optional<DType> k_dtype = {}, v_dtype = {};  // of codes; empty: cache_dtype
};

// All calls of an operator in the step.
struct OperatorCost {
  std::string name = {};    // "linear qkv"
  std::string kernel = {};  // "cuda_sm90_decode"
  std::int64_t num_calls = 0;
  double bytes = 0;  // inputs and outputs, each once: weights, activations, cached keys and values
  double flops = 0;  // of products and attention
  double seconds = 0;  // measured (engine/step_times.h)
};

// In the order of the first call. `file` is a header; weights count as the device keeps them.
// invalid_argument: a number of `shape`.
Result<std::vector<OperatorCost>> step_cost(const ModelFile& file, const StepShape& shape,
                                            const DeviceInfo& device);

}  // namespace headrace::model
