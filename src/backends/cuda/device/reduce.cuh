// Reductions in global memory without a return value (red), fixed-point sums, acquire and release.
#pragma once

#include "backends/cuda/device/types.cuh"

namespace headrace::cuda {

// Adds to four floats, aligned to 16 bytes. Each addition is atomic by itself; their order is not
// defined. One instruction from sm_90 on.
__device__ __forceinline__ void red_add_v4_f32(float* to, float x, float y, float z, float w) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x),
               "f"(y), "f"(z), "f"(w)
               : "memory");
#else
  atomicAdd(to, x);
  atomicAdd(to + 1, y);
  atomicAdd(to + 2, z);
  atomicAdd(to + 3, w);
#endif
}

// ---- Fixed point
// The bits of a float in [2^23, 2^24) are an integer plus a constant. Adding 1.5 * 2^23 to a value
// in
// [-2^22, 2^22) therefore rounds it to an integer, on the FMA pipe; a conversion instruction runs
// on the pipe of the exponentials, at an eighth of the rate.
inline constexpr float kFixedMagic = 0x1.8p23f;
inline constexpr u32 kFixedMagicBits = 0x4b400000;

// `first` at the smaller address.
__device__ __forceinline__ u64 pack_u64(u32 first, u32 second) { return u64{second} << 32 | first; }
// Two values as integers plus kFixedMagicBits, with zero = kFixedMagic. With zero = 0 and values of
// 0 the contribution is skipped.
__device__ __forceinline__ u64 fixed_point_pair(float first, float second, float zero) {
  return pack_u64(__float_as_uint(first + zero), __float_as_uint(second + zero));
}
// The same by conversion instructions, for values up to 2^30.
__device__ __forceinline__ u64 cvt_fixed_point_pair(float first, float second) {
  const auto word = [](float x) { return static_cast<u32>(__float2int_rn(x)) + kFixedMagicBits; };
  return pack_u64(word(first), word(second));
}
// Beyond 2^22 a word of fixed_point_pair holds the value as a float, not as an integer plus the
// constant. Converts such words to that form.
__device__ __forceinline__ u64 reconverted_pair(u64 pair) {
  const auto number = [](u64 word) {
    return __uint_as_float(static_cast<u32>(word)) - kFixedMagic;
  };
  return cvt_fixed_point_pair(number(pair), number(pair >> 32));
}
// Bits that differ among the three operands, and bits set in any of them, as one lop3 each. From
// expressions the compiler makes a chain of twice as many instructions.
__device__ __forceinline__ u32 lop3_differ(u32 x, u32 y, u32 z) {
  u32 bits;
  asm("lop3.b32 %0, %1, %2, %3, 0x7e;" : "=r"(bits) : "r"(x), "r"(y), "r"(z));
  return bits;
}
__device__ __forceinline__ u32 lop3_or(u32 x, u32 y, u32 z) {
  u32 bits;
  asm("lop3.b32 %0, %1, %2, %3, 0xfe;" : "=r"(bits) : "r"(x), "r"(y), "r"(z));
  return bits;
}
// Bits in which the words of a fixed_point_pair differ from its `zero`.
__device__ __forceinline__ u32 overflow_bits(u64 pair, float zero) {
  return lop3_differ(static_cast<u32>(pair), static_cast<u32>(pair >> 32), __float_as_uint(zero));
}
// Adds to a pair of sums as to one 64-bit integer, because red has no vector form for integers.
// Aligned to 8 bytes; the order of the additions is not defined.
__device__ __forceinline__ void red_add_u64(float* to, u64 pair) {
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(to), "l"(pair) : "memory");
}
// The two sums of `count` such pairs, without their constants.
__device__ __forceinline__ int2 unpack_fixed_sums(u64 sums, u32 count) {
  sums -= count * pack_u64(kFixedMagicBits, kFixedMagicBits);
  const auto first = static_cast<int>(sums);
  return {first, static_cast<int>(sums >> 32) - (first >> 31)};  // minus the carry of the first
}

// Reads a counter that other CTAs advance, and acquires what they wrote before.
__device__ __forceinline__ u32 ld_acquire(const u32* from) {
  u32 value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ void st_release(u32* to, u32 value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

}  // namespace headrace::cuda
