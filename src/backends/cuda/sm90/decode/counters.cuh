// Counters in the workspace: the next item, and how many items of a (sequence, KV head) are done.
// The workspace may hold anything, and a kernel that only clears it would add 3 us to every call:
// the first CTA that arrives clears them while the others load their first keys.
#pragma once

#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/sm90/decode/params.h"

namespace headrace::cuda::sm90::decode {

// By one warp of each CTA. `mark` is 2 token while one CTA clears, 2 token + 1 when it has. No
// other call of the process has this token, so memory holds neither by chance (2^-62).
// close_counters() takes the mark away, since a graph brings the same token again.
__device__ __forceinline__ void open_counters(const Params& p, int num_arrived, int lane) {
  CounterWords* words = p.counters;
  const u64 busy = 2 * p.token, ready = busy + 1;
  bool is_mine = false;
  if (lane == 0) {
    u64 seen = *const_cast<volatile u64*>(&words->mark);
    while (seen != ready && !is_mine) {
      if (seen == busy) {
        seen = *const_cast<volatile u64*>(&words->mark);
        continue;
      }
      const u64 before = atomicCAS(&words->mark, seen, busy);
      is_mine = before == seen;
      seen = before;
    }
  }
  if (__shfl_sync(0xffffffffu, static_cast<int>(is_mine), 0) != 0) {
    for (int i = lane; i < num_arrived; i += 32) __stcg(p.arrived + i, 0);
    if (lane == 0) {
      atomicExch(&words->next_item, 0);
      atomicExch(&words->num_closed, 0);
    }
    __threadfence();
    __syncwarp();
    if (lane == 0) atomicExch(&words->mark, ready);
  }
  __threadfence();
  __syncwarp();
}

// By one thread of each CTA, behind the CTA's last use of a counter.
__device__ __forceinline__ void close_counters(const Params& p) {
  __threadfence();
  if (atomicAdd(&p.counters->num_closed, 1) == static_cast<int>(gridDim.x) - 1)
    atomicExch(&p.counters->mark, 0ull);
}

// What the calling thread saw written before (through barriers too) is visible to the thread that
// sees the count.
__device__ __forceinline__ int atom_add_acq_rel(int* to, int value) {
  int before;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(to), "r"(value)
               : "memory");
  return before;
}

}  // namespace headrace::cuda::sm90::decode
