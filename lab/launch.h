// Launches of the two kernels of lab/.
#pragma once

#include "core/kernel.h"

namespace headrace::lab {

inline constexpr int kTeachingDim = 64;  // the largest head_dim

Status launch_teaching(const Problem& p, const AttentionArgs& args, Stream stream);

// scores: [batch * num_heads, seqlen_q, seqlen_k]
Status launch_materialised(const Problem& p, const AttentionArgs& args, float* scores,
                           Stream stream);

}  // namespace headrace::lab
