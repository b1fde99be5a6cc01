// Operands and GEMMs of the five products of a backward tile on mma.sync. Operands are in shared
// memory under SwizzleRows; their rows run along m or n (plain) or along k (transposed). An MMA
// step is 16 terms of 16-bit formats or 8 of float.
#pragma once

#include "backends/cuda/sm80/load.cuh"
#include "backends/cuda/sm80/mma_tile.cuh"

namespace headrace::cuda::sm80::bwd {

// Lane address for ldmatrix of B, 8 rows and two steps: matrices are chunks 0 to 3 of rows 0-7.
template <int kRowBytes>
__device__ __forceinline__ u32 ldmatrix_address_two_steps(u32 tile, int lane) {
  return swizzled_address<kRowBytes>(tile, lane & 7, lane >> 3);
}

// Rows of the tile run along m (A, 16 rows) or n (B, 16 rows).
template <int kRowBytes>
struct PlainOperand {
  __device__ PlainOperand(u32 tile, int lane)
      : a_(ldmatrix_address_rows_first<kRowBytes>(tile, lane)),
        b_(ldmatrix_address_chunks_first<kRowBytes>(tile, lane)) {}
  __device__ __forceinline__ void load_a(int step, int block, u32 (&a)[4]) const {
    ldmatrix_x4(a, advance_swizzled(a_, step) + static_cast<u32>(16 * block * kRowBytes));
  }
  // Column blocks 2 `pair` and 2 `pair` + 1.
  __device__ __forceinline__ void load_b(int step, int pair, u32 (&b)[4]) const {
    ldmatrix_x4(b, advance_swizzled(b_, step) + static_cast<u32>(16 * pair * kRowBytes));
  }

 private:
  u32 a_, b_;
};

// Rows of the tile run along k. `column` is the first row (A) or column (B) of the result that the
// warp owns, a multiple of their number, which is a power of two. Steps to the others therefore
// change only address bits that `column` does not set.
template <class T, int kRowBytes>
struct TransposedOperand {
  __device__ TransposedOperand(u32 tile, int column, int lane)
      : a_(advance_swizzled(ldmatrix_address_chunks_first<kRowBytes>(tile, lane), column / 16)),
        b_(advance_swizzled(ldmatrix_address_rows_first<kRowBytes>(tile, lane), column / 16)) {}
  __device__ __forceinline__ void load_a(int step, int block, u32 (&a)[4]) const {
    ldmatrix_x4_trans(a, advance_swizzled(a_, block) + static_cast<u32>(16 * step * kRowBytes));
  }
  // Column blocks 2 `pair` and 2 `pair` + 1.
  __device__ __forceinline__ void load_b(int step, int pair, u32 (&b)[4]) const {
    ldmatrix_x4_trans(b, advance_swizzled(b_, pair) + static_cast<u32>(16 * step * kRowBytes));
  }

 private:
  u32 a_, b_;
};

// Floats are loaded one by one, because ldmatrix.trans transposes 16-bit elements only. Terms 2 t
// and 2 t + 1 of a step take the places t and t + 4 of the fragment, in both operands of a product,
// so that the rows that a warp reads at once are in different banks.
template <int kRowBytes>
struct TransposedOperand<float, kRowBytes> {
  __device__ TransposedOperand(u32 tile, int column, int lane)
      : even_(address(tile, 2 * (lane & 3), column + (lane >> 2))),
        odd_(address(tile, 2 * (lane & 3) + 1, column + (lane >> 2))) {}
  __device__ __forceinline__ void load_a(int step, int block, u32 (&a)[4]) const {
    a[0] = load(even_, step, 2 * block);
    a[1] = load(even_, step, 2 * block + 1);
    a[2] = load(odd_, step, 2 * block);
    a[3] = load(odd_, step, 2 * block + 1);
  }
  __device__ __forceinline__ void load_b(int step, int pair, u32 (&b)[4]) const {
    b[0] = load(even_, step, 2 * pair);
    b[1] = load(odd_, step, 2 * pair);
    b[2] = load(even_, step, 2 * pair + 1);
    b[3] = load(odd_, step, 2 * pair + 1);
  }

 private:
  static __device__ __forceinline__ u32 address(u32 tile, int row, int column) {
    return swizzled_address<kRowBytes>(tile, row, column >> 2) + static_cast<u32>((column & 3) * 4);
  }
  // `eight`: index of a group of eight columns.
  static __device__ __forceinline__ u32 load(u32 row, int step, int eight) {
    u32 x;
    asm volatile("ld.shared.b32 %0, [%1];"
                 : "=r"(x)
                 : "r"(advance_swizzled(row, eight) + static_cast<u32>(8 * step * kRowBytes))
                 : "memory");
    return x;
  }
  u32 even_, odd_;
};

// A plain operand with the order of terms of the TransposedOperand that it is multiplied with.
template <class T, int kRowBytes>
struct PermutedOperand : PlainOperand<kRowBytes> {
  using PlainOperand<kRowBytes>::PlainOperand;
};
template <int kRowBytes>
struct PermutedOperand<float, kRowBytes> {
  __device__ PermutedOperand(u32 tile, int lane)
      : row_(swizzled_address<kRowBytes>(tile, lane >> 2, (lane & 3) >> 1) +
             static_cast<u32>((lane & 1) * 8)) {}
  __device__ __forceinline__ void load_a(int step, int block, u32 (&a)[4]) const {
    load_two(step, 16 * block, a[0], a[2]);
    load_two(step, 16 * block + 8, a[1], a[3]);
  }

 private:
  __device__ __forceinline__ void load_two(int step, int row, u32& x, u32& y) const {
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                 : "=r"(x), "=r"(y)
                 : "r"(advance_swizzled(row_, step) + static_cast<u32>(row * kRowBytes))
                 : "memory");
  }
  u32 row_;
};

// d += A B. load_a(step, block, a) loads 16 rows; load_b(step, pair, b) loads 16 columns, or 8 into
// b[0] and b[1] if the warp has no more.
template <class T, int kRowBlocks, int kColumnBlocks, int kMmaSteps>
struct TileGemm {
  static_assert(kColumnBlocks == 1 || kColumnBlocks % 2 == 0);
  template <class LoadA, class LoadB>
  static __device__ __forceinline__ void add(LoadA load_a, LoadB load_b,
                                             float (&d)[kRowBlocks][kColumnBlocks][4]) {
#pragma unroll
    for (int step = 0; step < kMmaSteps; ++step) {
      u32 a[kRowBlocks][4];
#pragma unroll
      for (int r = 0; r < kRowBlocks; ++r) load_a(step, r, a[r]);
#pragma unroll
      for (int j = 0; j < kColumnBlocks; j += 2) {
        u32 b[4];
        load_b(step, j / 2, b);
#pragma unroll
        for (int r = 0; r < kRowBlocks; ++r) {
          MmaOps<T>::mma(d[r][j], a[r], b[0], b[1]);
          if constexpr (kColumnBlocks > 1) MmaOps<T>::mma(d[r][j + 1], a[r], b[2], b[3]);
        }
      }
    }
  }
};

// Tensor cores accumulate at most kMaxChain steps, as in the forward.
template <int kRowBlocks, int kColumnBlocks, int kMmaSteps>
struct TileGemm<float, kRowBlocks, kColumnBlocks, kMmaSteps> {
  static constexpr int kMaxChain = kMmaSteps < 4 ? kMmaSteps : 4;
  static constexpr int kPair = kColumnBlocks == 1 ? 1 : 2;
  static_assert(kColumnBlocks % kPair == 0 && kMmaSteps % kMaxChain == 0);
  template <class LoadA, class LoadB>
  static __device__ __forceinline__ void add(LoadA load_a, LoadB load_b,
                                             float (&d)[kRowBlocks][kColumnBlocks][4]) {
#pragma unroll
    for (int j = 0; j < kColumnBlocks; j += kPair) {
      float small[kRowBlocks][kPair][4] = {};
#pragma unroll
      for (int first = 0; first < kMmaSteps; first += kMaxChain) {
        float part[kRowBlocks][kPair][4] = {};
#pragma unroll
        for (int step = first; step < first + kMaxChain; ++step) {
          u32 b[4];
          load_b(step, j / 2, b);
          Tf32Split y[2 * kPair];
#pragma unroll
          for (int n = 0; n < 2 * kPair; ++n) y[n] = split_tf32(__uint_as_float(b[n]));
#pragma unroll
          for (int r = 0; r < kRowBlocks; ++r) {
            u32 a[4];
            load_a(step, r, a);
            Tf32Split x[4];
#pragma unroll
            for (int n = 0; n < 4; ++n) x[n] = split_tf32(__uint_as_float(a[n]));
#pragma unroll
            for (int i = 0; i < kPair; ++i)
              mma_3xtf32(part[r][i], small[r][i], x, y[2 * i], y[2 * i + 1]);
          }
        }
        add_to<kPair>(part, j, d);
      }
      add_to<kPair>(small, j, d);
    }
  }

 private:
  template <int kCount>
  static __device__ __forceinline__ void add_to(const float (&part)[kRowBlocks][kCount][4], int j,
                                                float (&d)[kRowBlocks][kColumnBlocks][4]) {
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r)
#pragma unroll
      for (int n = 0; n < 4 * kCount; ++n) d[r][j + n / 4][n % 4] += part[r][n / 4][n % 4];
  }
};

}  // namespace headrace::cuda::sm80::bwd
