// mbarriers, named barriers, proxy fences, setmaxnreg, elect and PDL. sm_90; on sm_80 only named
// barriers and mbarriers without transaction bytes.
#pragma once

#include "backends/cuda/device/types.cuh"

namespace headrace::cuda {

// An mbarrier is 8 bytes of shared memory. Its phase parity goes 0, 1, 0, ...: a phase completes
// when `arrivals` threads have arrived and all expected bytes have landed.
__device__ __forceinline__ void mbarrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void mbarrier_inval(u32 barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives and adds `bytes` to the transaction count, for TMA to complete.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Whether the phase of this parity has completed.
__device__ __forceinline__ bool mbarrier_test_wait(u32 barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
// The same. On sm_90 it may suspend the thread for a while before it returns false.
__device__ __forceinline__ bool mbarrier_try_wait(u32 barrier, u32 parity) {
#if __CUDA_ARCH__ >= 900
  u32 done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
#else
  return mbarrier_test_wait(barrier, parity);
#endif
}
// With HEADRACE_HANG_TRAP, for tests of a barrier protocol, a wait of some seconds traps.
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

// After mbarrier_init, before TMA or other CTAs of the cluster use the barrier.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Makes a thread's writes to shared memory visible to the async proxy (TMA and wgmma). Every
// writing thread fences, before the barrier.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Named barriers 1 to 15 (0 is __syncthreads). `threads` counts arriving and waiting threads, a
// multiple of 32.
__device__ __forceinline__ void bar_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// bar_sync(), and whether any thread has `x`.
__device__ __forceinline__ bool bar_any(int id, int threads, bool x) {
  u32 any;
  asm volatile(
      "{\n"
      ".reg .pred p, q;\n"
      "setp.ne.u32 p, %1, 0;\n"
      "barrier.cta.red.or.pred q, %2, %3, p;\n"
      "selp.u32 %0, 1, 0, q;\n"
      "}"
      : "=r"(any)
      : "r"(static_cast<u32>(x)), "r"(id), "r"(threads)
      : "memory");
  return any != 0;
}
__device__ __forceinline__ void bar_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Sets the registers per thread of this warpgroup, a multiple of 8. ptxas needs
// __launch_bounds__(threads, 1) for it.
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

// Programmatic dependent launch (PDL): wait for the previous kernel, allow the next one to start.
// Before sm_90 the kernels of a stream run one after the other anyway.
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
