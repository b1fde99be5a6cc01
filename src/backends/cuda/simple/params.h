// Parameters shared by the kernels of fwd/ and bwd/.
#pragma once

#include "core/kernel.h"

namespace headrace::cuda::simple {

struct Params {
  Problem problem;
  AttentionArgs args;
  std::int64_t num_rows;      // batch * num_heads * (longest) seqlen_q
  std::uint32_t* error_word;  // for lengths on the device
};

inline constexpr int kWarps = 4;  // per CTA; a warp computes one row at a time

}  // namespace headrace::cuda::simple
