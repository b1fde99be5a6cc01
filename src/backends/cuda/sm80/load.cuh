// Loads of rows of Q, K, V and dO into shared memory.
//
// A row has `dim` elements, zero-padded to the head dim of the tile. Its 16-byte chunks are
// swizzled: chunk c of row r lies at c ^ swizzle(r), so that the eight rows (or four pairs of rows)
// that a warp reads at once are in different banks.
#pragma once

#include "backends/cuda/device/cp_async.cuh"

namespace headrace::cuda::sm80 {

// For ldmatrix, which reads 8 rows of 16 bytes at once.
struct SwizzleRows {
  static __device__ __forceinline__ int of(int row) { return row & 7; }
};
// For V in float: a warp reads 32 bytes of rows 0, 2, 4 and 6, or 1, 3, 5 and 7.
struct SwizzlePairs {
  static __device__ __forceinline__ int of(int row) { return (row >> 1 & 3) * 2; }
};

// Copies a chunk element by element, for addresses that are not aligned to 16 bytes: `count`
// elements, then zeros.
template <class T>
__device__ __forceinline__ void copy_chunk(u32 to, const T* from, int count) {
  constexpr int kElements = 16 / sizeof(T);
#pragma unroll 1
  for (int i = 0; i < kElements; ++i) {
    const u32 at = to + static_cast<u32>(i * static_cast<int>(sizeof(T)));
    if constexpr (sizeof(T) == 4) {
      const u32 bits = i < count ? reinterpret_cast<const u32*>(from)[i] : 0;
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(bits) : "memory");
    } else {
      const unsigned short bits = i < count ? reinterpret_cast<const unsigned short*>(from)[i] : 0;
      asm volatile("st.shared.b16 [%0], %1;" ::"r"(at), "h"(bits) : "memory");
    }
  }
}

// Partition of a tile of rows of kDim elements among kThreads: a thread copies chunk chunk() of
// rows first(), first() + kStep, ...
template <class T, int kDim, int kThreads>
struct CopyPartition {
  static constexpr int kRowBytes = kDim * static_cast<int>(sizeof(T)), kChunks = kRowBytes / 16;
  static constexpr int kElements = 16 / static_cast<int>(sizeof(T)), kStep = kThreads / kChunks;
  static_assert(kThreads % kChunks == 0);
  static __device__ __forceinline__ int chunk() { return static_cast<int>(threadIdx.x) % kChunks; }
  static __device__ __forceinline__ int first() { return static_cast<int>(threadIdx.x) / kChunks; }
  // Valid elements of a chunk in rows of `dim`.
  static __device__ __forceinline__ int count_of(std::int64_t dim, int chunk) {
    return min(max(static_cast<int>(dim) - chunk * kElements, 0), kElements);
  }
  static __device__ __forceinline__ int count(std::int64_t dim) { return count_of(dim, chunk()); }
  template <class Swizzle>
  static __device__ __forceinline__ u32 offset(int row) {
    return static_cast<u32>(row * kRowBytes + (chunk() ^ Swizzle::of(row)) * 16);
  }
};

// One chunk; zeros if the row does not exist.
template <class T>
__device__ __forceinline__ void load_chunk(u32 to, const T* from, int count, bool exists,
                                           bool is_aligned) {
  if (is_aligned) {
    cp_async_cg_16(to, from, exists ? count * static_cast<int>(sizeof(T)) : 0);
  } else {
    copy_chunk(to, from, exists ? count : 0);
  }
}

// Loads kRows rows, `stride` apart, of which num_rows exist. `from` points to the thread's chunk of
// its first row. Fast path: all rows exist and every chunk is whole or past the row (`is_even`);
// clear_chunks() has zeroed the latter once.
template <class T, int kDim, int kRows, int kThreads, class Swizzle>
__device__ __forceinline__ void load_tile(u32 to, const T* from, std::int64_t stride,
                                          std::int64_t dim, int num_rows, bool is_aligned,
                                          bool is_even) {
  using Copy = CopyPartition<T, kDim, kThreads>;
  static_assert(kRows % Copy::kStep == 0);
  const int count = Copy::count(dim), first = Copy::first();
  const std::int64_t step = Copy::kStep * stride;
  if (is_even && num_rows == kRows) {
    if (count == 0) return;
#pragma unroll
    for (int i = 0; i < kRows / Copy::kStep; ++i)
      cp_async_cg_16(to + Copy::template offset<Swizzle>(first + i * Copy::kStep), from + i * step);
    return;
  }
#pragma unroll 1
  for (int row = first; row < kRows; row += Copy::kStep, from += step)
    load_chunk(to + Copy::template offset<Swizzle>(row), from, count, row < num_rows, is_aligned);
}

// Zeroes the chunks past the row, which the fast path of load_tile() skips.
template <class T, int kDim, int kRows, int kThreads, class Swizzle>
__device__ inline void clear_chunks(u32 to, std::int64_t dim) {
  using Copy = CopyPartition<T, kDim, kThreads>;
  if (Copy::count(dim) > 0) return;
  for (int row = Copy::first(); row < kRows; row += Copy::kStep)
    copy_chunk(to + Copy::template offset<Swizzle>(row), static_cast<const T*>(nullptr), 0);
}

}  // namespace headrace::cuda::sm80
