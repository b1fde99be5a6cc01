// Where ldmatrix finds operands of mma.sync: chunks of rows in swizzle atoms.
#pragma once

#include "backends/cuda/common/constants.h"
#include "backends/cuda/device/tma.cuh"

namespace headrace::cuda::gemm {

// Address of a 16-byte chunk of a row of 128 bytes. TMA swizzles by the address itself, so that a
// box may begin at any row.
__device__ __forceinline__ u32 swizzled_chunk(u32 row, int chunk) {
  return row + ((static_cast<u32>(chunk) ^ (row >> 7 & 7u)) << 4);
}
// Address of a 16-byte chunk of a row in an atom.
__device__ __forceinline__ u32 chunk_address(u32 atom, int row, int chunk) {
  return atom + swizzle128(static_cast<u32>(row * kSwizzleRowBytes + chunk * 16));
}

}  // namespace headrace::cuda::gemm
