// "cuda_sm90_bwd": attention backward by TMA and wgmma.
#pragma once

#include "core/kernel.h"

namespace headrace::cuda::sm90::bwd {

extern const Kernel kBackwardKernel;

}  // namespace headrace::cuda::sm90::bwd
