// Sums in global memory that nobody waits for.
#pragma once

#include "backends/cuda/device/types.cuh"

namespace headrace::cuda {

// Adds to four floats, aligned to 16 bytes: each by itself, in any order with others. One
// instruction from sm_90 on.
__device__ __forceinline__ void reduce_add4(float* to, float x, float y, float z, float w) {
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
// A float from 2^23 to below 2^24 is, as a word, an integer and a constant. Adding 1.5 2^23 to a
// number from -2^22 to below 2^22 rounds it to such an integer in the unit of products; a
// conversion has that of the exponentials, at an eighth of the rate.
inline constexpr float kFixedZero = 0x1.8p23f;
inline constexpr u32 kFixedZeroWord = 0x4b400000;

// Two words, `first` at the smaller address.
__device__ __forceinline__ u64 pair_of(u32 first, u32 second) { return u64{second} << 32 | first; }
// Two numbers as integers above the constant.
__device__ __forceinline__ u64 fixed_pair(float first, float second) {
  return pair_of(__float_as_uint(first + kFixedZero), __float_as_uint(second + kFixedZero));
}
// Of larger numbers, up to 2^30, fixed_pair has what a float has of the sum, by 2^-22 of themselves
// at most, but not as integers above the constant. They become that.
__device__ __forceinline__ u64 mended_pair(u64 pair) {
  const auto word = [](u64 of_float) {
    const float x = __uint_as_float(static_cast<u32>(of_float));
    return static_cast<u32>(__float2int_rn(x - kFixedZero)) + kFixedZeroWord;
  };
  return pair_of(word(pair), word(pair >> 32));
}
// Adds to a pair of sums as to one integer of 64 bits: there is no vector form of integer
// additions. Aligned to 8 bytes, and in any order with others.
__device__ __forceinline__ void reduce_add_pair(float* to, u64 pair) {
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(to), "l"(pair) : "memory");
}
// The two sums of `count` such pairs.
__device__ __forceinline__ int2 split_pair(u64 sums, u32 count) {
  sums -= count * pair_of(kFixedZeroWord, kFixedZeroWord);
  const auto first = static_cast<int>(sums);
  return {first, static_cast<int>(sums >> 32) - (first >> 31)};  // without what the first carried
}

// A counter that other CTAs advance, and what they wrote before.
__device__ __forceinline__ u32 load_acquire(const u32* from) {
  u32 value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ void store_release(u32* to, u32 value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

}  // namespace headrace::cuda
