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

// A counter that other CTAs advance, and what they wrote before.
__device__ __forceinline__ u32 load_acquire(const u32* from) {
  u32 value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ void store_release(u32* to, u32 value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

// The same without knowing what the counter holds. What others wrote before a barrier with this
// thread is seen too, hence the fence.
__device__ __forceinline__ void add_release(u32* to, u32 value) {
  asm volatile("fence.acq_rel.gpu;\nred.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(to), "r"(value)
               : "memory");
}

}  // namespace headrace::cuda
