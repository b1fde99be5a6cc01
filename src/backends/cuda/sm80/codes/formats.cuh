// The formats of codes as operands of mma.sync: pairs of f16, exact.
//
// An integer code is the low digits of an f16, where it is the subnormal number code * 2^-24: a
// mask makes the operand of two codes. A tensor core aligns a product by the exponents of its
// operands, that of a subnormal number being -14, so sums are off by up to 2^-13 of a code. Signed
// codes are stored with an offset that makes them unsigned; sums of q, and of weights, which the
// same instructions make, take it back.
//
// A lane (g = lane / 4, c = lane % 4) reads rows of K for the A operand of S^T = K Q^T: kDim / 4
// elements of a key, and of V for that of O^T = V^T P^T: kDim / 8 elements of four keys. Within a
// row the order of the elements in the reduction is free, as Q follows it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "backends/cuda/device/mma.cuh"

namespace headrace::cuda::sm80::codes {

// (x & mask) ^ y, which ptxas makes two instructions of when both are immediate numbers.
template <u32 kMask>
__device__ __forceinline__ u32 lop3_and_xor(u32 x, u32 y) {
  asm("lop3.b32 %0, %0, %1, %2, 0x6a;" : "+r"(x) : "n"(kMask), "r"(y));
  return x;
}

// 8-bit integers: as unsigned numbers plus 128.
struct Int8Format {
  static constexpr int kBits = 8, kUnitLog2 = -24;
  static constexpr bool kIsInteger = true;
  static constexpr float kOffset = 128;

  // Elements (0, 1) and (2, 3) of a word of K.
  static __device__ __forceinline__ void key_pairs(u32 word, u32 (&pairs)[2]) {
    word ^= 0x80808080u;
    pairs[0] = __byte_perm(word, 0, 0x4140);
    pairs[1] = __byte_perm(word, 0, 0x4342);
  }
  // Elements i of the words of two keys.
  template <int kIndex>
  static __device__ __forceinline__ u32 value_pair(u32 a, u32 b) {
    const u32 both = __byte_perm(a, b, kIndex | (4 + kIndex) << 8);
    return lop3_and_xor<0x00ff00ffu>(both, 0x00800080u);
  }
};

// 8-bit floats: a conversion instruction from sm_89 on.
struct E4m3Format {
  static constexpr int kBits = 8, kUnitLog2 = 0;
  static constexpr bool kIsInteger = false;
  static constexpr float kOffset = 0;
  static __device__ __forceinline__ u32 of_bytes(u32 low_half) {
#if __CUDA_ARCH__ >= 890
    u32 pair;
    asm("{ .reg .b16 x; cvt.u16.u32 x, %1; cvt.rn.f16x2.e4m3x2 %0, x; }"
        : "=r"(pair)
        : "r"(low_half));
    return pair;
#else
    const __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(
        static_cast<__nv_fp8x2_storage_t>(low_half & 0xffffu), __NV_E4M3);
    return u32{pair.x} | u32{pair.y} << 16;
#endif
  }
  static __device__ __forceinline__ void key_pairs(u32 word, u32 (&pairs)[2]) {
    pairs[0] = of_bytes(word);
    pairs[1] = of_bytes(word >> 16);
  }
  template <int kIndex>
  static __device__ __forceinline__ u32 value_pair(u32 a, u32 b) {
    return of_bytes(__byte_perm(a, b, kIndex | (4 + kIndex) << 4));
  }
};

// 4-bit integers plus 8: a word has eight elements. Of two pairs in a byte the second is 16 times
// as large.
struct Int4Format {
  static constexpr int kBits = 4, kUnitLog2 = -24;
  static constexpr bool kIsInteger = true;
  static constexpr float kOffset = 8;
};

// The pairs of elements of a key that a lane multiplies in step `s` of the reduction, as A operand
// words 0 and 2 of its row, and which elements of its part of a row they are. key_factor(i): how
// many times too large pair i is; that of V as well.
template <class Format>
struct KeySteps;

template <class Format>
requires(Format::kBits == 8) struct KeySteps<Format> {
  static __device__ __forceinline__ void pairs(const u32* words, int s, u32 (&to)[2]) {
    Format::key_pairs(words[s], to);
  }
  static constexpr int element(int s, int i) { return 4 * s + i; }
  static constexpr float key_factor(int) { return 1; }
  // Codes of 0.
  static __device__ __forceinline__ void offset_pairs(u32 (&to)[2]) { Format::key_pairs(0, to); }
};
template <>
struct KeySteps<Int4Format> {
  // Elements (0, 4), (1, 5) of a word, then (2, 6), (3, 7).
  static __device__ __forceinline__ void pairs(const u32* words, int s, u32 (&to)[2]) {
    const u32 word = words[s / 2] >> (s % 2 * 8);
    to[0] = word & 0x000f000fu;
    to[1] = word & 0x00f000f0u;
  }
  static constexpr int element(int s, int i) { return s / 2 * 8 + s % 2 * 2 + i / 2 + i % 2 * 4; }
  static constexpr float key_factor(int pair) { return pair == 0 ? 1 : 16; }
  static __device__ __forceinline__ void offset_pairs(u32 (&to)[2]) {
    to[0] = 0x00080008u;
    to[1] = 0x00800080u;
  }
};

// Element `kIndex` of the rows of V of two keys, as a pair.
template <class Format, int kIndex>
__device__ __forceinline__ u32 value_pair(const u32* a, const u32* b) {
  if constexpr (Format::kBits == 8) {
    return Format::template value_pair<kIndex % 4>(a[kIndex / 4], b[kIndex / 4]);
  } else {
    const u32 both = __byte_perm(a[kIndex / 8], b[kIndex / 8], kIndex % 8 < 4 ? 0x5410 : 0x7632);
    return both >> (kIndex % 4 / 2 * 8) & (kIndex % 2 == 0 ? 0x000f000fu : 0x00f000f0u);
  }
}

// The dtype of q, out and recent keys.
struct Bf16 {
  using Stored = __nv_bfloat16;
  static __device__ __forceinline__ u32 pack(float x, float y) { return cvt_rn_bf16x2(x, y); }
  static __device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    mma_m16n8k16_bf16(d, a, b0, b1);
  }
};
struct F16 {
  using Stored = __half;
  static __device__ __forceinline__ u32 pack(float x, float y) { return cvt_rn_f16x2(x, y); }
  static __device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    mma_m16n8k16_f16(d, a, b0, b1);
  }
};

}  // namespace headrace::cuda::sm80::codes
