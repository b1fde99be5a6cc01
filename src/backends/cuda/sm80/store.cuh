// Stores of finished rows.
#pragma once

#include "backends/cuda/common/element.cuh"
#include "backends/cuda/sm80/load.cuh"

namespace headrace::cuda::sm80 {

// Two columns of a row. is_even: rows are whole aligned 16-byte chunks.
__device__ __forceinline__ void store_floats(float* row, std::int64_t dim, int column, float x,
                                             float y, bool is_even) {
  if (is_even) {
    if (column < dim) *reinterpret_cast<float2*>(row + column) = {x, y};
  } else {
    if (column < dim) store_real(row, column, x);
    if (column + 1 < dim) store_real(row, column + 1, y);
  }
}

// Copies a warp's swizzled rows from shared to global memory: those whose bit in `done` is set.
// Lane r passes the offset of row r.
template <class T, int kDim, int kWarpRows>
__device__ __forceinline__ void copy_rows(const unsigned char* from, T* out, std::int64_t offset,
                                          unsigned done, std::int64_t dim, bool is_even) {
  using Copy = CopyPartition<T, kDim, 32>;
  constexpr int kChunks = Copy::kChunks;
  constexpr int kRounds = kWarpRows * kChunks / 32;
  static_assert(kWarpRows * kChunks % 32 == 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // body(shared address, global address, valid elements)
  const auto for_chunk = [&](int round, auto body) {
    const int i = 32 * round + lane, row = i / kChunks, chunk = i % kChunks;
    T* to = out + __shfl_sync(0xffffffffu, offset, row) + chunk * Copy::kElements;
    const unsigned char* at = from + row * Copy::kRowBytes + (chunk ^ SwizzleRows::of(row)) * 16;
    body(at, to, (done >> row & 1u) != 0 ? Copy::count_of(dim, chunk) : 0);
  };
  __syncwarp();
  if (is_even) {  // branch-free, so that loads of several rounds are in flight
#pragma unroll 8
    for (int round = 0; round < kRounds; ++round)
      for_chunk(round, [](const unsigned char* at, T* to, int count) {
        const uint4 x = *reinterpret_cast<const uint4*>(at);
        if (count > 0) *reinterpret_cast<uint4*>(to) = x;
      });
  } else {
#pragma unroll 1
    for (int round = 0; round < kRounds; ++round)
      for_chunk(round, [](const unsigned char* at, T* to, int count) {
#pragma unroll 1
        for (int n = 0; n < count; ++n) to[n] = reinterpret_cast<const T*>(at)[n];
      });
  }
  __syncwarp();
}

}  // namespace headrace::cuda::sm80
