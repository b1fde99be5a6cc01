// The last backward kernel of the CUDA list.
#pragma once

#include "core/kernel.h"

namespace headrace::cuda::simple::bwd {

extern const Kernel kBackwardKernel;  // "cuda_simple"

}  // namespace headrace::cuda::simple::bwd
