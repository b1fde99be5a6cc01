// Counters in the workspace: the next item, and how many items of a (sequence, KV head) are done.
#pragma once

#include "backends/cuda/sm90/call_counters.cuh"
#include "backends/cuda/sm90/decode/params.h"

namespace headrace::cuda::sm90::decode {

__device__ __forceinline__ CallCounters counters_of(const Params& p) {
  return {p.counters, p.token};
}

// By one warp of each CTA. The first CTA that arrives clears them while the others load their first
// keys.
__device__ __forceinline__ void open_counters(const Params& p, int num_arrived, int lane) {
  const CallCounters counters = counters_of(p);
  const int is_mine = lane == 0 && counters.claim() ? 1 : 0;
  if (__shfl_sync(0xffffffffu, is_mine, 0) != 0) {
    for (int i = lane; i < num_arrived; i += 32) __stcg(p.arrived + i, 0);
    __threadfence();
    __syncwarp();
    if (lane == 0) counters.publish();
  }
  __threadfence();
  __syncwarp();
}

// Writes that the calling thread has observed, through barriers too, are visible to a thread that
// reads the new count.
__device__ __forceinline__ int atom_add_acq_rel(int* to, int value) {
  int before;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(to), "r"(value)
               : "memory");
  return before;
}

}  // namespace headrace::cuda::sm90::decode
