// Dynamic tile counter, in words of the workspace.
#pragma once

#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/sm90/call_counters.cuh"
#include "backends/cuda/sm90/fwd/params.h"

namespace headrace::cuda::sm90::fwd {

// One warp's view.
class TileCounter {
 public:
  __device__ TileCounter(const Params& p, int lane)
      : counters_(p.tile_counter, p.tile_counter_token), lane_(lane) {}

  __device__ int next() {
    init_once();
    const int tile = lane_ == 0 ? counters_.take_next() : 0;
    return __shfl_sync(0xffffffffu, tile, 0);
  }
  // Once in every CTA, after its last next().
  __device__ void close() {
    init_once();
    if (lane_ == 0) counters_.close();
  }

 private:
  __device__ void init_once() {
    if (is_ready_) return;
    is_ready_ = true;
    griddep_wait();  // the kernel before may use the same workspace
    if (lane_ == 0) init_or_wait();
    __syncwarp();
  }
  __device__ void init_or_wait() const {
    if (counters_.claim()) {
      counters_.publish();
    } else {
      __threadfence();
    }
  }

  const CallCounters counters_;
  int lane_;
  bool is_ready_ = false;
};

}  // namespace headrace::cuda::sm90::fwd
