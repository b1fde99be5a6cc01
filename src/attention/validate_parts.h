// Checks that the forward's and the backward's front door share.
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

// `why` follows the expected dtype in the text.
Status check_dtype(const char* name, const headrace_tensor& tensor, DType expected,
                   const char* why);

// Everything that the tensors and options say about the problem but how they lie in memory.
Status read_problem(const headrace_attention_tensors& t, const headrace_attention_options& options,
                    Problem& p);

// One of q, k, v, out or a gradient of theirs: rows of q (or of k), `heads` and `dim` as Problem
// has them. read_problem() came before.
struct OperandShape {
  bool is_of_q;
  Axis heads, dim;
};
Status check_operand(const NamedTensor& x, const Problem& p, const OperandShape& shape);

// lse or dlse.
Status check_lse(const NamedTensor& x, const Problem& p);

// What the kernels that copy 16 bytes at a time must know of the operands.
void read_layout(std::span<const NamedTensor> operands, Problem& p);

// All that are given lie where q lies.
Status check_devices(const headrace_tensor& q, std::span<const NamedTensor> tensors);

// Outputs share memory neither with inputs nor with each other nor, between indices, with
// themselves. At most 16 inputs.
Status check_overlaps(std::span<const NamedTensor> inputs, std::span<const NamedTensor> outputs);

}  // namespace headrace
