// Waiting for one another: mbarriers in shared memory, named barriers, fences between what threads
// and what the copy and tensor engines write; registers that warps hand to each other. sm_90;
// on sm_80 mbarriers without announced bytes, and named barriers.
#pragma once

#include "backends/cuda/device/types.cuh"

namespace headrace::cuda {

// An mbarrier is 8 bytes of shared memory. Its phases are numbered 0, 1, 0, ...: a phase ends when
// `arrivals` threads have arrived and all announced bytes have landed.
__device__ __forceinline__ void mbarrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void mbarrier_inval(u32 barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives and announces bytes that asynchronous copies will bring.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Whether the phase of this parity has ended; may sleep for a while before it says no.
__device__ __forceinline__ bool mbarrier_try_wait(u32 barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
#if __CUDA_ARCH__ >= 900
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
#else
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
#endif
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
// HEADRACE_HANG_TRAP (for tests of a protocol) ends a wait of some seconds with an error.
__device__ __forceinline__ void mbarrier_wait(u32 barrier, u32 parity) {
#ifdef HEADRACE_HANG_TRAP
  const long long start = clock64();
  while (!mbarrier_try_wait(barrier, parity))
    if (clock64() - start > 4000000000LL) __trap();
#else
  while (!mbarrier_try_wait(barrier, parity)) {
  }
#endif
}

// After mbarrier_init and before other CTAs of the cluster or the copy engine use it.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Shared memory that threads wrote becomes visible to the copy engine and to wgmma. Every writing
// thread fences, before the barrier.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Named barriers 1 to 15 (0 is __syncthreads); `threads` counts those that arrive and those that
// wait, a multiple of 32.
__device__ __forceinline__ void bar_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void bar_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Registers of each thread of this warpgroup: a multiple of 8. Needs __launch_bounds__(threads, 1).
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// True in one lane of a converged warp.
__device__ __forceinline__ bool elect_sync() {
  u32 is_elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(is_elected));
  return is_elected != 0;
}

// Programmatic dependent launch: wait for the kernel before, let the next one begin. Before sm_90
// kernels follow each other anyway.
__device__ __forceinline__ void griddep_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void griddep_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace headrace::cuda
