// What baselines.cc hands to the two kernels that only tests and benchmarks ask for.
#pragma once

#include <span>

#include "core/kernel.h"

namespace headrace::cuda::simple {

// "cuda_teaching" and "cuda_materialised": the idea of this library in 100 lines, and what it
// replaces. Not in the list: they take plain problems alone.
std::span<const Kernel> baseline_kernels();

inline constexpr int kTeachingDim = 64;  // most columns of a row

Status launch_teaching(const Problem& p, const AttentionArgs& args, Stream stream);

// scores: [batch * num_heads, seqlen_q, seqlen_k]
Status launch_materialised(const Problem& p, const AttentionArgs& args, float* scores,
                           Stream stream);

}  // namespace headrace::cuda::simple
