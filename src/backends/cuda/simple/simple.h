// What kernel.cc hands to the kernels of simple/.
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

// One file an element type.
Status launch_f32(const Params& params, std::int64_t num_ctas, Stream stream);
Status launch_f16(const Params& params, std::int64_t num_ctas, Stream stream);
Status launch_bf16(const Params& params, std::int64_t num_ctas, Stream stream);
Status launch_f64(const Params& params, std::int64_t num_ctas, Stream stream);

}  // namespace headrace::cuda::simple
