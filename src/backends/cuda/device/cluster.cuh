// Clusters of CTAs: rank, barrier, shared memory of another CTA. sm_90.
#pragma once

#include "backends/cuda/device/types.cuh"

namespace headrace::cuda {

__device__ __forceinline__ u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ u32 cluster_size() {
  u32 size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}

// A barrier of all threads of the cluster, converged warps. It orders no memory: for that its
// release would wait for all of the GPU's. Barriers that fence_mbarrier_init() published are
// visible behind it.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Stores to the shared memory of a CTA of the cluster, and counts its bytes for an mbarrier there.
__device__ __forceinline__ void st_async(u32 address, float x, u32 barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(address),
      "f"(x), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void st_async(u32 address, const float (&x)[4], u32 barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(address),
      "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(barrier)
      : "memory");
}
// mbarrier_wait() for what other CTAs of the cluster stored.
__device__ __forceinline__ void mbarrier_wait_cluster(u32 barrier, u32 parity) {
  u32 done = 0;
  while (done == 0)
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
}

// An address of this CTA's shared memory in that of CTA `rank`.
__device__ __forceinline__ u32 cluster_address(u32 address, u32 rank) {
  u32 remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}

}  // namespace headrace::cuda
