// Makes counters in the workspace a call's own. They are not cleared before the launch: a kernel
// that only clears them would add 3 us to every call. The first CTA that arrives clears them.
#pragma once

#include "backends/cuda/device/types.cuh"
#include "backends/cuda/sm90/call_counters.h"

namespace headrace::cuda::sm90 {

// The mark is 2 token while one CTA clears and 2 token + 1 when it has. No other call of the
// process has this token, so stale words in the workspace do not look like this call's mark (one of
// 2^62 values). The last CTA to close resets the mark: a replayed graph has the same token again.
class CallCounters {
 public:
  __device__ __forceinline__ CallCounters(CounterWords* words, u64 token)
      : words_(words), clearing_(2 * token) {}

  // By one thread of each CTA, before the first use of a counter. True in one CTA of the call: it
  // clears what else the call counts in the workspace, then publishes. False: the counters are
  // ready; __threadfence() orders later reads behind this.
  __device__ __forceinline__ bool claim() const {
    u64 seen = *const_cast<volatile u64*>(&words_->mark);
    while (seen != clearing_ + 1) {
      if (seen == clearing_) {
        seen = *const_cast<volatile u64*>(&words_->mark);
        continue;
      }
      const u64 before = atomicCAS(&words_->mark, seen, clearing_);
      if (before == seen) return true;
      seen = before;
    }
    return false;
  }
  __device__ __forceinline__ void publish() const {
    atomicExch(&words_->next, 0);
    atomicExch(&words_->num_closed, 0);
    __threadfence();
    atomicExch(&words_->mark, clearing_ + 1);
  }

  __device__ __forceinline__ int take_next() const { return atomicAdd(&words_->next, 1); }

  // By one thread of each CTA, behind the CTA's last use of a counter.
  __device__ __forceinline__ void close() const {
    __threadfence();
    if (atomicAdd(&words_->num_closed, 1) == static_cast<int>(gridDim.x) - 1)
      atomicExch(&words_->mark, 0ull);
  }

 private:
  CounterWords* words_;
  u64 clearing_;
};

}  // namespace headrace::cuda::sm90
