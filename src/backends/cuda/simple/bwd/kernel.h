// The last kernel of the CUDA list for the backward.
#pragma once

#include "core/kernel.h"

namespace headrace::cuda::simple::bwd {

extern const Kernel kBackwardKernel;  // "cuda_simple"

}  // namespace headrace::cuda::simple::bwd
