// The portable backward kernel.
#pragma once

#include "core/kernel.h"

namespace headrace::cuda::sm80::bwd {

extern const Kernel kBackwardKernel;  // "cuda_sm80_bwd"

}  // namespace headrace::cuda::sm80::bwd
