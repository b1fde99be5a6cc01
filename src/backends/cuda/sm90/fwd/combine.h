// The kernel that combines the partial results that splits left (combine.cu).
#pragma once

#include "backends/cuda/sm90/fwd/params.h"
#include "core/kernel.h"

namespace headrace::cuda::sm90::fwd {

Status launch_combine(const Params& params, DType dtype, Stream stream);

}  // namespace headrace::cuda::sm90::fwd
