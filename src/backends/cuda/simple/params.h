// Parameters shared by the kernels of fwd/ and bwd/.
#pragma once

#include "backends/cuda/common/kernel_args.h"
#include "core/kernel.h"

namespace headrace::cuda::simple {

struct Params {
  Problem problem;
  AttentionArgs args;
  std::int64_t num_rows;  // batch * num_heads * (longest) seqlen_q
  Lengths lengths;
  UsedKeys used_keys;
};

inline constexpr int kWarps = 4;  // per CTA; a warp computes one row at a time

}  // namespace headrace::cuda::simple
