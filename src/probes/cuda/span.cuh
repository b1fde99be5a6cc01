// The clock of a kernel: cycles of its multiprocessor and nanoseconds.
#pragma once

#include "backends/cuda/device/types.cuh"
#include "probes/cuda/bench.h"

namespace headrace::probes::gpu {

using headrace::cuda::u32;
using headrace::cuda::u64;
using i64 = std::int64_t;

__device__ __forceinline__ u64 globaltimer() {
  u64 nanoseconds;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
  return nanoseconds;
}

__device__ __forceinline__ u64 cycle_count() {
  u64 cycles;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles));
  return cycles;
}

// Writes the span of the first CTA from construction to write().
class SpanTimer {
 public:
  __device__ SpanTimer() : nanoseconds_(globaltimer()), cycles_(cycle_count()) {}
  __device__ void write(KernelSpan* span) const {
    const u64 cycles = cycle_count() - cycles_, nanoseconds = globaltimer() - nanoseconds_;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      span->cycles = cycles;
      span->nanoseconds = nanoseconds;
    }
  }

 private:
  u64 nanoseconds_, cycles_;
};

// Makes a value needed without storing it: no sum is the number that `never` is.
template <class T>
__device__ __forceinline__ void keep(T value, T never, T* sink) {
  if (value == never) *sink = value;
}

__device__ __forceinline__ u32 hash(u32 x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

}  // namespace headrace::probes::gpu
