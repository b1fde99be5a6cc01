// The activation of gated feed-forward layers.
#pragma once

#include "backends/cuda/common/constants.h"
#include "backends/cuda/device/mma.cuh"

namespace headrace::cuda {

// x / (1 + e^-x) without a branch: an IEEE division has one, behind which the next element waits.
// Off by 2^-21 + 2^-25 |x| of the result. -0 below -88, where e^-x exceeds floats.
__device__ __forceinline__ float silu(float x) {
  float sigmoid;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(sigmoid) : "f"(1.0f + ex2_approx_ftz(-kLog2E * x)));
  return x * sigmoid;
}

}  // namespace headrace::cuda
