// What the hosts of fwd/ and bwd/ hand to the kernels of simple/.
#pragma once

#include "core/kernel.h"

namespace headrace::cuda::simple {

struct Params {
  Problem problem;
  AttentionArgs args;
  std::int64_t num_rows;      // batch * num_heads * (longest) seqlen_q
  std::uint32_t* error_word;  // for lengths that live on the device
};

inline constexpr int kWarps = 4;  // of a CTA; each takes a row at a time

}  // namespace headrace::cuda::simple
