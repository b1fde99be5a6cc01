// Validation: turns the caller's structs into a Problem (shapes and features) and AttentionArgs
// (pointers), or into an error that names the argument, the value that arrived, the rule and the
// remedy. All argument errors come from here. Valid calls allocate nothing.
#pragma once

#include "base/error.h"
#include "core/args.h"
#include "core/problem.h"

namespace headrace {

inline constexpr std::int64_t kMaxHeadDim = 576;
inline constexpr std::int64_t kMaxProbsElements = std::int64_t{1} << 28;

headrace_attention_options default_options();
Problem default_problem();

// Shapes, strides, dtypes, devices, overlaps, options. Reads no tensor data.
Result<Problem> validate(const headrace_attention_tensors& tensors,
                         const headrace_attention_options& options);

Result<Problem> validate_backward(const headrace_attention_tensors& tensors,
                                  const headrace_attention_gradients& gradients,
                                  const headrace_attention_options& options);

// Checks a Problem from any source: every size, enum and combination that planning and kernels
// rely on. Resolves the default scale and replaces windows that hide nothing by -1. In place: a
// Problem is 300 bytes, and a copy costs as much as a check.
Status complete_problem(Problem& problem);
Result<Problem> check_problem(const Problem& problem);  // a completed copy

// The pointers of a validated call.
AttentionArgs make_args(const Problem& problem, const headrace_attention_tensors& tensors,
                        const headrace_attention_options& options);
AttentionArgs make_backward_args(const Problem& problem, const headrace_attention_tensors& tensors,
                                 const headrace_attention_gradients& gradients,
                                 const headrace_attention_options& options);

// Checks the cu_seqlens of a ragged batch in CPU memory.
Status validate_lengths(const Problem& problem, const AttentionArgs& args);

// Fails with the first shape or feature in which a call differs from its plan.
Status check_same_problem(const Problem& planned, const Problem& call);

// Reads a size-prefixed struct of any header version: fields unknown to the caller keep their value
// in `ours`; fields unknown to the library must be zero.
Status copy_versioned(const char* name, const void* theirs, std::size_t min_bytes, void* ours,
                      std::size_t our_bytes);

}  // namespace headrace
