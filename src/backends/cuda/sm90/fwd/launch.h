// The compiled kernels: one file a head_dim, in it both formats.
#pragma once

#include "backends/cuda/sm90/fwd/params.h"
#include "core/kernel.h"

namespace headrace::cuda::sm90 {

using Launch = Status(const Params& params, const Maps& maps, int num_ctas, Stream stream);
Launch launch_bf16_64, launch_bf16_96, launch_bf16_128, launch_bf16_192v128, launch_bf16_192,
    launch_bf16_256;
Launch launch_f16_64, launch_f16_96, launch_f16_128, launch_f16_192v128, launch_f16_192,
    launch_f16_256;

}  // namespace headrace::cuda::sm90
