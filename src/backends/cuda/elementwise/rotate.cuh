// A pair of elements under RoPE.
#pragma once

namespace headrace::cuda::append {

// (a, b) rotates by the angle. Rounded explicitly, so that all kernels give the same bits.
__device__ __forceinline__ void rotate_pair(float& a, float& b, float cos, float sin) {
  const float x = a, y = b;
  a = __fmaf_rn(x, cos, -__fmul_rn(y, sin));
  b = __fmaf_rn(y, cos, __fmul_rn(x, sin));
}

}  // namespace headrace::cuda::append
