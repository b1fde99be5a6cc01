// Fragments of mma.sync from swizzle atoms.
#pragma once

#include "backends/cuda/common/constants.h"
#include "backends/cuda/device/mma.cuh"

namespace headrace::cuda::gemm {

template <class Element>
__device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  if constexpr (Element::kHasFloatRange)
    mma_m16n8k16_bf16(d, a, b0, b1);
  else
    mma_m16n8k16_f16(d, a, b0, b1);
}

// Address of a 16-byte chunk of a row in an atom.
__device__ __forceinline__ u32 chunk_address(u32 atom, int row, int chunk) {
  return atom + static_cast<u32>(row * kSwizzleRowBytes + ((chunk ^ (row & 7)) << 4));
}

}  // namespace headrace::cuda::gemm
