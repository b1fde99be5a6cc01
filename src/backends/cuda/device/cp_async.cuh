// cp.async: copies from global to shared memory that bypass registers. sm_80 and newer.
#pragma once

#include "backends/cuda/device/types.cuh"

namespace headrace::cuda {

// 16 bytes, both addresses aligned to 16. The last 16 - `bytes` are zero-filled and not read; with
// bytes = 0 `from` may be any address.
__device__ __forceinline__ void cp_async_cg_16(u32 to, const void* from, int bytes = 16) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
// `policy`: of L2, as in tma.cuh.
__device__ __forceinline__ void cp_async_cg_16(u32 to, const void* from, int bytes, u64 policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to),
               "l"(from), "r"(bytes), "l"(policy)
               : "memory");
}
// 4, 8 or 16 bytes, both addresses aligned to them.
template <int kBytes>
__device__ __forceinline__ void cp_async(u32 to, const void* from) {
  if constexpr (kBytes == 16) {
    cp_async_cg_16(to, from);
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(kBytes)
                 : "memory");
  }
}
// The same, and the rest of the 128-byte line comes to L2: others read it soon.
template <int kBytes>
__device__ __forceinline__ void cp_async_of_line(u32 to, const void* from) {
  if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2;" ::"r"(to), "l"(from),
                 "n"(kBytes)
                 : "memory");
}
__device__ __forceinline__ void cp_async_commit_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Arrives at an mbarrier (barrier.cuh) when all earlier cp.async of this thread have landed.
__device__ __forceinline__ void cp_async_mbarrier_arrive_noinc(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// Waits until at most kPending groups of this thread are in flight. Other threads see the data only
// after a barrier.
template <int kPending>
__device__ __forceinline__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace headrace::cuda
