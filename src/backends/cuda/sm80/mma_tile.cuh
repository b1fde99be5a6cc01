// S = Q K^T and O += P V of a tile on mma.sync, with 16-bit formats or float as 3xTF32.
//
// An MMA step over the head dim is 32 bytes of a row: 16 elements of 16 bits, or 8 floats. ldmatrix
// moves 16-byte chunks of any element type, so both formats load Q and K with it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "backends/cuda/device/mma.cuh"

namespace headrace::cuda::sm80 {

// Calls body(row block, half) for each row of a thread; both are compile-time constants.
template <int kRowBlocks, class Body>
__device__ __forceinline__ void for_rows(Body body) {
  using Zero = std::integral_constant<int, 0>;
  using One = std::integral_constant<int, 1>;
  body(Zero(), Zero());
  body(Zero(), One());
  if constexpr (kRowBlocks == 2) {
    body(One(), Zero());
    body(One(), One());
  }
}

// Address of MMA step `step` for a lane whose step 0 is at `address`. The swizzle permutes
// addresses only within 128 bytes, and tiles are aligned to the length of a row.
__device__ __forceinline__ u32 advance_swizzled(u32 address, int step) {
  return (address ^ static_cast<u32>(32 * (step % 4))) + static_cast<u32>(128 * (step / 4));
}

// Address of a chunk of a row.
template <int kRowBytes>
__device__ __forceinline__ u32 swizzled_address(u32 tile, int row, int chunk) {
  return tile + static_cast<u32>(row * kRowBytes + ((chunk ^ (row & 7)) * 16));
}
// Lane address for ldmatrix of A, 16 rows: matrices (rows 0-7, chunk 0), (rows 8-15, chunk 0),
// (rows 0-7, chunk 1), ...
template <int kRowBytes>
__device__ __forceinline__ u32 ldmatrix_address_rows_first(u32 tile, int lane) {
  return swizzled_address<kRowBytes>(tile, lane & 15, lane >> 4);
}
// Lane address for ldmatrix of B, 16 rows: matrices (rows 0-7, chunk 0), (rows 0-7, chunk 1),
// (rows 8-15, chunk 0), ...
template <int kRowBytes>
__device__ __forceinline__ u32 ldmatrix_address_chunks_first(u32 tile, int lane) {
  return swizzled_address<kRowBytes>(tile, (lane & 7) + (lane >> 4) * 8, lane >> 3 & 1);
}

template <class T>
struct MmaOps;
template <>
struct MmaOps<__nv_bfloat16> {
  static __device__ __forceinline__ u32 pack(float a, float b) { return cvt_rn_bf16x2(a, b); }
  static __device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    mma_m16n8k16_bf16(d, a, b0, b1);
  }
};
template <>
struct MmaOps<__half> {
  static __device__ __forceinline__ u32 pack(float a, float b) { return cvt_rn_f16x2(a, b); }
  static __device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    mma_m16n8k16_f16(d, a, b0, b1);
  }
};

// 16-bit formats.
template <class T, int kDim, int kRowBlocks, int kKeyBlocks>
struct TileMma {
  static constexpr int kRowBytes = 2 * kDim, kMmaSteps = kDim / 16;
  using SwizzleV = SwizzleRows;

  // s += Q K^T. load_q(step, q) loads the fragments of all row blocks.
  template <class LoadQ>
  static __device__ __forceinline__ void qk(u32 k_tile, int lane, LoadQ load_q,
                                            float (&s)[kRowBlocks][kKeyBlocks][4]) {
    const u32 k_lane = ldmatrix_address_chunks_first<kRowBytes>(k_tile, lane);
#pragma unroll
    for (int step = 0; step < kMmaSteps; ++step) {
      u32 q[kRowBlocks][4];
      load_q(step, q);
      const u32 at = advance_swizzled(k_lane, step);
#pragma unroll
      for (int j = 0; j < kKeyBlocks; j += 2) {
        u32 k[4];
        ldmatrix_x4(k, at + static_cast<u32>(8 * j * kRowBytes));
#pragma unroll
        for (int b = 0; b < kRowBlocks; ++b) {
          MmaOps<T>::mma(s[b][j], q[b], k[0], k[1]);
          MmaOps<T>::mma(s[b][j + 1], q[b], k[2], k[3]);
        }
      }
    }
  }

  // o += P V.
  static __device__ __forceinline__ void pv(u32 v_tile, int lane, float,
                                            const float (&p)[kRowBlocks][kKeyBlocks][4],
                                            float (&o)[kRowBlocks][kDim / 8][4]) {
    const u32 v_lane = ldmatrix_address_rows_first<kRowBytes>(v_tile, lane);
    u32 a[kKeyBlocks / 2][kRowBlocks][4];
#pragma unroll
    for (int j = 0; j < kKeyBlocks; ++j)
#pragma unroll
      for (int b = 0; b < kRowBlocks; ++b) {
        a[j / 2][b][j % 2 * 2] = MmaOps<T>::pack(p[b][j][0], p[b][j][1]);
        a[j / 2][b][j % 2 * 2 + 1] = MmaOps<T>::pack(p[b][j][2], p[b][j][3]);
      }
#pragma unroll
    for (int j = 0; j < kKeyBlocks / 2; ++j) {
#pragma unroll
      for (int c = 0; c < kDim / 16; ++c) {
        u32 v[4];
        ldmatrix_x4_trans(v, advance_swizzled(v_lane, c) + static_cast<u32>(16 * j * kRowBytes));
#pragma unroll
        for (int b = 0; b < kRowBlocks; ++b) {
          MmaOps<T>::mma(o[b][2 * c], a[j][b], v[0], v[1]);
          MmaOps<T>::mma(o[b][2 * c + 1], a[j][b], v[2], v[3]);
        }
      }
    }
  }
};

// x = high + low, 11 bits each: high is rounded to nearest, low is truncated by the tensor core.
// The error is at most 2^-23 |x|.
struct Tf32Split {
  u32 high, low;
};
__device__ __forceinline__ Tf32Split split_tf32(float x) {
  const u32 high = (__float_as_uint(x) + 0x1000u) & 0xFFFFE000u;
  return {high, __float_as_uint(x - __uint_as_float(high))};
}
// d + small += a b without the product of the low parts, which is below 2^-22 |a b|. Tensor cores
// truncate when they add: the small terms have an accumulator of their own, where truncation costs
// no precision.
__device__ __forceinline__ void mma_3xtf32(float (&d)[4], float (&small)[4],
                                           const Tf32Split (&a)[4], Tf32Split b0, Tf32Split b1) {
  const u32 high[4] = {a[0].high, a[1].high, a[2].high, a[3].high};
  const u32 low[4] = {a[0].low, a[1].low, a[2].low, a[3].low};
  mma_m16n8k8_tf32(small, low, b0.high, b1.high);
  mma_m16n8k8_tf32(d, high, b0.high, b1.high);
  mma_m16n8k8_tf32(small, high, b0.low, b1.low);
}

// Float as 3xTF32. Tensor cores accumulate at most kMaxChain steps, because they truncate; FADD,
// which rounds, adds the partial sums.
template <int kDim, int kRowBlocks, int kKeyBlocks>
struct TileMma<float, kDim, kRowBlocks, kKeyBlocks> {
  static constexpr int kRowBytes = 4 * kDim, kMmaSteps = kDim / 8;
  static constexpr int kMaxChain = 4;
  using SwizzleV = SwizzlePairs;
  using Sums = float[kRowBlocks][kKeyBlocks][4];

  static __device__ __forceinline__ void add(Sums& s, const Sums& part) {
#pragma unroll
    for (int b = 0; b < kRowBlocks; ++b)
#pragma unroll
      for (int n = 0; n < 4 * kKeyBlocks; ++n) s[b][n / 4][n % 4] += part[b][n / 4][n % 4];
  }

  template <class LoadQ>
  static __device__ __forceinline__ void qk(u32 k_tile, int lane, LoadQ load_q, Sums& s) {
    const u32 k_lane = ldmatrix_address_chunks_first<kRowBytes>(k_tile, lane);
    Sums small = {};
#pragma unroll 2
    for (int first = 0; first < kMmaSteps; first += kMaxChain) {
      Sums part = {};
#pragma unroll
      for (int i = 0; i < kMaxChain; ++i) {
        const int step = first + i;
        u32 q[kRowBlocks][4];
        load_q(step, q);
        Tf32Split a[kRowBlocks][4];
#pragma unroll
        for (int n = 0; n < 4 * kRowBlocks; ++n)
          a[n / 4][n % 4] = split_tf32(__uint_as_float(q[n / 4][n % 4]));
        const u32 at = advance_swizzled(k_lane, step);
#pragma unroll
        for (int j = 0; j < kKeyBlocks; j += 2) {
          u32 k[4];
          ldmatrix_x4(k, at + static_cast<u32>(8 * j * kRowBytes));
          Tf32Split y[4];
#pragma unroll
          for (int n = 0; n < 4; ++n) y[n] = split_tf32(__uint_as_float(k[n]));
#pragma unroll
          for (int b = 0; b < kRowBlocks; ++b) {
            mma_3xtf32(part[b][j], small[b][j], a[b], y[0], y[1]);
            mma_3xtf32(part[b][j + 1], small[b][j + 1], a[b], y[2], y[3]);
          }
        }
      }
      add(s, part);
    }
    add(s, small);
  }

  // s += Q K^T without tensor cores. Infinities survive, which a split into tf32 parts would lose.
  static __device__ __forceinline__ void qk_fma(u32 q_tile, u32 k_tile, int lane, Sums& s) {
#pragma unroll 1
    for (int chunk = 0; chunk < kDim / 4; ++chunk) {
      float4 q[2 * kRowBlocks];
#pragma unroll
      for (int r = 0; r < 2 * kRowBlocks; ++r)
        q[r] = load_chunk(swizzled_address<kRowBytes>(q_tile, 8 * r + (lane >> 2), chunk));
#pragma unroll
      for (int n = 0; n < 2 * kKeyBlocks; ++n) {
        const int key = n / 2 * 8 + 2 * (lane & 3) + n % 2;
        const float4 k = load_chunk(swizzled_address<kRowBytes>(k_tile, key, chunk));
#pragma unroll
        for (int r = 0; r < 2 * kRowBlocks; ++r) {
          float& x = s[r / 2][n / 2][r % 2 * 2 + n % 2];
          x = fmaf(q[r].x, k.x, x);
          x = fmaf(q[r].y, k.y, x);
          x = fmaf(q[r].z, k.z, x);
          x = fmaf(q[r].w, k.w, x);
        }
      }
    }
  }

  // o += P V v_scale. Row 2 t of V is index t of the product and row 2 t + 1 is index t + 4, so
  // that the accumulator fragments of S are used as A fragments of P without a shuffle.
  static __device__ __forceinline__ void pv(u32 v_tile, int lane, float v_scale, const Sums& p,
                                            float (&o)[kRowBlocks][kDim / 8][4]) {
    const int g = lane >> 2, t = lane & 3;
    const u32 v_lane =
        v_tile + static_cast<u32>(2 * t * kRowBytes + (g >> 2 ^ 2 * t) * 16 + (g & 3) * 4);
    constexpr int kBlocks = kKeyBlocks < kMaxChain ? kKeyBlocks : kMaxChain;
#pragma unroll
    for (int first = 0; first < kKeyBlocks; first += kBlocks) {
      Tf32Split a[kBlocks][kRowBlocks][4];
#pragma unroll
      for (int j = 0; j < kBlocks; ++j)
#pragma unroll
        for (int b = 0; b < kRowBlocks; ++b) {
          const float(&x)[4] = p[b][first + j];
          a[j][b][0] = split_tf32(x[0]);
          a[j][b][1] = split_tf32(x[2]);
          a[j][b][2] = split_tf32(x[1]);
          a[j][b][3] = split_tf32(x[3]);
        }
#pragma unroll
      for (int c = 0; c < kDim / 8; ++c) {
        float part[kRowBlocks][4] = {}, small[kRowBlocks][4] = {};
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) {
          const u32 at =
              advance_swizzled(v_lane, c) + static_cast<u32>(8 * (first + j) * kRowBytes);
          const Tf32Split y0 = split_tf32(load_shared(at) * v_scale);
          const Tf32Split y1 = split_tf32(load_shared(at + kRowBytes) * v_scale);
#pragma unroll
          for (int b = 0; b < kRowBlocks; ++b) mma_3xtf32(part[b], small[b], a[j][b], y0, y1);
        }
#pragma unroll
        for (int b = 0; b < kRowBlocks; ++b)
#pragma unroll
          for (int n = 0; n < 4; ++n) o[b][c][n] += part[b][n] + small[b][n];
      }
    }
  }

  static __device__ __forceinline__ float4 load_chunk(u32 address) {
    float4 x;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(address)
                 : "memory");
    return x;
  }
  static __device__ __forceinline__ float load_shared(u32 address) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
    return x;
  }
};

}  // namespace headrace::cuda::sm80
