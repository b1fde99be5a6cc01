// The formats of codes as operands of mma.sync: pairs of f16, exact.
//
// A lane (g = lane / 4, c = lane % 4) reads rows of K for the A operand of S^T = K Q^T: kDim / 4
// elements of a key, and of V for that of O^T = V^T P^T: kDim / 8 elements of four keys. Within a
// row the order of the elements in the reduction is free, as Q follows it. Elements of V are larger
// than their codes by kValueOffset: a sum of weights, which the same instructions make of ones,
// takes that back from O.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "backends/cuda/device/mma.cuh"

namespace headrace::cuda::sm80::codes {

__device__ __forceinline__ u32 sub_f16x2(u32 x, u32 y) {
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(x) : "r"(x), "r"(y));
  return x;
}

// 8-bit integers: as unsigned numbers plus 128, in the low digits of 1024.
struct Int8Format {
  static constexpr int kBits = 8;
  static constexpr float kValueOffset = 1152;
  static constexpr u32 kOffset = 0x64806480;  // 1152, 1152
  static __device__ __forceinline__ u32 of_bytes(u32 bytes) { return sub_f16x2(bytes, kOffset); }

  // Elements (0, 1) and (2, 3) of a word of K.
  static __device__ __forceinline__ void key_pairs(u32 word, u32 (&pairs)[2]) {
    word ^= 0x80808080u;
    pairs[0] = of_bytes(__byte_perm(word, 0x64646464u, 0x4140));
    pairs[1] = of_bytes(__byte_perm(word, 0x64646464u, 0x4342));
  }
  // Elements i of the words of two keys.
  template <int kIndex>
  static __device__ __forceinline__ u32 value_pair(u32 a, u32 b) {
    const u32 both = __byte_perm(a, b, kIndex | (4 + kIndex) << 8);
    return (both & 0x00ff00ffu) ^ 0x64806480u;  // 1024 + (code ^ 128)
  }
};

// 8-bit floats: a conversion instruction from sm_89 on.
struct E4m3Format {
  static constexpr int kBits = 8;
  static constexpr float kValueOffset = 0;
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

// Pairs of 4-bit integers plus 8: a word has eight elements.
struct Int4Format {
  static constexpr int kBits = 4;
  static constexpr float kValueOffset = 1032;
  static __device__ __forceinline__ u32 with_offset(u32 nibbles) {
    return (nibbles & 0x000f000fu) | 0x64006400u;
  }
  static __device__ __forceinline__ u32 of_nibbles(u32 nibbles) {
    return sub_f16x2(with_offset(nibbles), 0x64086408u);  // 1032, 1032
  }
};

// The pairs of elements of a key that a lane multiplies in step `s` of the reduction, as A operand
// words 0 and 2 of its row, and which elements of its part of a row they are.
template <class Format>
struct KeySteps;

template <class Format>
requires(Format::kBits == 8) struct KeySteps<Format> {
  static __device__ __forceinline__ void pairs(const u32* words, int s, u32 (&to)[2]) {
    Format::key_pairs(words[s], to);
  }
  static constexpr int element(int s, int i) { return 4 * s + i; }
};
template <>
struct KeySteps<Int4Format> {
  // Elements (0, 4), (1, 5) of a word, then (2, 6), (3, 7).
  static __device__ __forceinline__ void pairs(const u32* words, int s, u32 (&to)[2]) {
    const u32 word = words[s / 2] >> (s % 2 * 8);
    to[0] = Int4Format::of_nibbles(word);
    to[1] = Int4Format::of_nibbles(word >> 4);
  }
  static constexpr int element(int s, int i) { return s / 2 * 8 + s % 2 * 2 + i / 2 + i % 2 * 4; }
};

// Element `kIndex` of the rows of V of two keys, as a pair.
template <class Format, int kIndex>
__device__ __forceinline__ u32 value_pair(const u32* a, const u32* b) {
  if constexpr (Format::kBits == 8) {
    return Format::template value_pair<kIndex % 4>(a[kIndex / 4], b[kIndex / 4]);
  } else {
    const u32 both = __byte_perm(a[kIndex / 8], b[kIndex / 8], kIndex % 8 < 4 ? 0x5410 : 0x7632);
    return Int4Format::with_offset(both >> (kIndex % 4 * 4));
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
