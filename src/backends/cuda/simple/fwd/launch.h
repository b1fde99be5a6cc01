// Launches of the forward.
#pragma once

#include "backends/cuda/simple/params.h"

namespace headrace::cuda::simple::fwd {

// One translation unit per element type.
Status launch_f32(const Params& params, std::int64_t num_ctas, Stream stream);
Status launch_f16(const Params& params, std::int64_t num_ctas, Stream stream);
Status launch_bf16(const Params& params, std::int64_t num_ctas, Stream stream);
Status launch_f64(const Params& params, std::int64_t num_ctas, Stream stream);

}  // namespace headrace::cuda::simple::fwd
