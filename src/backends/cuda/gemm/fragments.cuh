// Where ldmatrix finds operands of mma.sync: chunks of rows in swizzle atoms.
#pragma once

#include "backends/cuda/common/constants.h"
#include "backends/cuda/device/tma.cuh"

namespace headrace::cuda::gemm {

// Address of a 16-byte chunk of a row in an atom.
__device__ __forceinline__ u32 chunk_address(u32 atom, int row, int chunk) {
  return atom + swizzle128(static_cast<u32>(row * kSwizzleRowBytes + chunk * 16));
}

}  // namespace headrace::cuda::gemm
