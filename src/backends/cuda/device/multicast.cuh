// Stages that a cluster of CTAs loads once for all of them. sm_90.
#pragma once

#include "backends/cuda/device/types.cuh"

namespace headrace::cuda {

// mbarrier_arrive() at a barrier of any CTA of the cluster, its address from cluster_address(). It
// orders no memory, so it suits threads that have read: a release waits for the thread's writes to
// global memory, 0.7 us.
__device__ __forceinline__ void mbarrier_arrive_cluster(u32 barrier) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier)
               : "memory");
}

// cp_async_bulk_tensor_load() to the CTAs of `mask`, bit i: rank i. In each of them the box arrives
// at the same address, and its bytes at the barrier of the same address.
__device__ __forceinline__ void cp_async_bulk_tensor_multicast(u32 to, const TensorMap* map,
                                                               u32 barrier, u64 policy,
                                                               unsigned short mask, int c0,
                                                               int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%5, %6}], [%2], %4, %3;" ::"r"(to),
      "l"(map), "r"(barrier), "l"(policy), "h"(mask), "r"(c0), "r"(c1)
      : "memory");
}

}  // namespace headrace::cuda
