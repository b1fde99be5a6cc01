// "cuda_sm90_fwd": attention forward by TMA and wgmma.
#pragma once

#include "core/kernel.h"

namespace headrace::cuda::sm90::fwd {

extern const Kernel kForwardKernel;

}  // namespace headrace::cuda::sm90::fwd
