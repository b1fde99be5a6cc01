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

// Adds to two integers, `low` at the smaller address, by one addition of 64 bits: to low + 2^32
// high, with signs. Aligned to 8 bytes, and in any order with others.
__device__ __forceinline__ void reduce_add_pair(int* to, int low, int high) {
  const auto upper = static_cast<u32>(high + (low >> 31));
  const u64 both = static_cast<u64>(upper) << 32 | static_cast<u32>(low);
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(to), "l"(both) : "memory");
}
// The two sums, from their words.
__device__ __forceinline__ int2 split_pair(int2 words) {
  return {words.x, words.y - (words.x >> 31)};
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
