// Dynamic tile counter, in words of the workspace. The words are not cleared before the launch: a
// kernel that only clears them would cost 3 us of every call. The first CTA that reads the counter
// clears it.
#pragma once

#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/sm90/fwd/params.h"

namespace headrace::cuda::sm90 {

// One warp's view. No other call of the process has the same token, so stale words in the workspace
// do not look like this call's mark (one of 2^62 values). The last CTA resets the mark: a replayed
// graph has the same token again.
class TileCounter {
 public:
  __device__ TileCounter(const Params& p, int lane)
      : words_(p.tile_counter), initializing_(2 * p.tile_counter_token), lane_(lane) {}

  __device__ int next() {
    init_once();
    const int tile = lane_ == 0 ? atomicAdd(&words_->next, 1) : 0;
    return __shfl_sync(0xffffffffu, tile, 0);
  }
  // Once in every CTA, after its last next().
  __device__ void close() {
    init_once();
    if (lane_ != 0) return;
    __threadfence();
    if (atomicAdd(&words_->num_closed, 1) == static_cast<int>(gridDim.x) - 1)
      atomicExch(&words_->mark, 0ull);
  }

 private:
  __device__ void init_once() {
    if (is_ready_) return;
    is_ready_ = true;
    griddep_wait();  // the kernel before may use the same workspace
    if (lane_ == 0) init_or_wait();
    __syncwarp();
  }
  __device__ void init_or_wait() {
    const u64 ready = initializing_ + 1;
    u64 seen = *const_cast<volatile u64*>(&words_->mark);
    while (seen != ready) {
      if (seen == initializing_) {
        seen = *const_cast<volatile u64*>(&words_->mark);
        continue;
      }
      const u64 before = atomicCAS(&words_->mark, seen, initializing_);
      if (before == seen) {
        atomicExch(&words_->next, 0);
        atomicExch(&words_->num_closed, 0);
        __threadfence();
        atomicExch(&words_->mark, ready);
        return;
      }
      seen = before;
    }
    __threadfence();
  }

  TileCounterWords* words_;
  u64 initializing_;
  int lane_;
  bool is_ready_ = false;
};

}  // namespace headrace::cuda::sm90
