// The portable tensor core kernels of the CUDA lists.
#pragma once

#include "core/kernel.h"

namespace headrace::cuda::sm80 {

extern const Kernel kForwardKernel;   // "cuda_sm80_fwd"
extern const Kernel kBackwardKernel;  // "cuda_sm80_bwd"

// Of products of floats, in units of 2^-24: each of two factors loses up to 2^-23, and the product
// of their low parts, up to 2^-22, is left out.
inline constexpr int kSplitProductError = 8;

}  // namespace headrace::cuda::sm80
