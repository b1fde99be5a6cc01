// Checks shared by the validation of forward and backward.
#pragma once

#include <span>

#include "attention/tensor_checks.h"
#include "attention/validate.h"

namespace headrace {

struct NamedTensor {
  const char* name;
  const headrace_tensor* tensor;
};

inline DType type_of(const headrace_tensor& tensor) { return static_cast<DType>(tensor.dtype); }

// `why` follows the expected dtype in the message.
Status check_dtype(const char* name, const headrace_tensor& tensor, DType expected,
                   const char* why);

// Reads everything but the memory layout from tensors and options into `p`.
Status read_problem(const headrace_attention_tensors& t, const headrace_attention_options& options,
                    Problem& p);

// One of q, k, v, out or a gradient of them: rows of q or of k, `heads` and `dim` as in the
// Problem. Call read_problem() first.
struct OperandShape {
  bool is_of_q;
  Axis heads, dim;
};
Status check_operand(const NamedTensor& x, const Problem& p, const OperandShape& shape);

// Scales and recent keys; behind the checks of q, k, v and of their lengths.
Status check_quantised(const headrace_attention_tensors& t, Problem& p);
// Of nothing if none is given.
const headrace_quantised_kv& quantised_of(const headrace_attention_tensors& t);

// lse or dlse.
Status check_lse(const NamedTensor& x, const Problem& p);

// Reads alignment and stride signs of the operands, for kernels that copy 16 bytes at a time.
void read_layout(std::span<const NamedTensor> operands, Problem& p);

// All given tensors must be on q's device.
Status check_devices(const headrace_tensor& q, std::span<const NamedTensor> tensors);

// Outputs must not overlap inputs, each other or themselves. At most 20 inputs.
Status check_overlaps(std::span<const NamedTensor> inputs, std::span<const NamedTensor> outputs);

}  // namespace headrace
