#pragma once

#include "backends/cuda/sm90/bwd/params.h"
#include "core/kernel.h"

namespace headrace::cuda::sm90::bwd {

// After the main kernel: dq from its accumulator, for tiles with this many columns of Q.
using Postprocess = Status(const PostprocessParams& params, DType dtype, Stream stream);
Postprocess launch_postprocess_hd64, launch_postprocess_hd128, launch_postprocess_hd192,
    launch_postprocess_hd256;

}  // namespace headrace::cuda::sm90::bwd
