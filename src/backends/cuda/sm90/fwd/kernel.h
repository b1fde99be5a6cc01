// "cuda_sm90_fwd": attention forward by the copy engine and wgmma.
#pragma once

#include "core/kernel.h"

namespace headrace::cuda::sm90 {

extern const Kernel kForwardKernel;
extern const Kernel kFeaturesKernel;  // "cuda_sm90_fwd_features": a baseline

}  // namespace headrace::cuda::sm90
