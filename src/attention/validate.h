// The front door: what the caller handed in becomes a Problem (shapes and features) and
// AttentionArgs (pointers), or an error that names the argument, what arrived, the rule it broke
// and what to do. All argument errors come from here. No allocation where nothing is wrong.
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

// A Problem that did not come from validate(): every size, enum and combination that planning and
// kernels rely on. Resolves the default scale and opens windows that hide nothing.
Result<Problem> check_problem(const Problem& problem);

// The pointers of a validated call.
AttentionArgs make_args(const Problem& problem, const headrace_attention_tensors& tensors,
                        const headrace_attention_options& options);
AttentionArgs make_backward_args(const Problem& problem, const headrace_attention_tensors& tensors,
                                 const headrace_attention_gradients& gradients,
                                 const headrace_attention_options& options);

// Reads the row lengths of a ragged batch that lies in CPU memory.
Status validate_lengths(const Problem& problem, const AttentionArgs& args);

// Names the first shape or feature in which a call differs from the one that was planned.
Status check_same_problem(const Problem& planned, const Problem& call);

// A size-prefixed struct of another version of the header: fields that the caller does not know
// keep the value they have in `ours`, fields that we do not know must be zero.
Status copy_versioned(const char* name, const void* theirs, std::size_t min_bytes, void* ours,
                      std::size_t our_bytes);

}  // namespace headrace
