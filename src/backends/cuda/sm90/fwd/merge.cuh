// Merges the splits of a row's keys, one after the other from right to left: in the kernel, where a
// tile has all of them, or behind it (combine.cu). Both give equal bits, so what several code paths
// compute is rounded explicitly: the compiler would fuse some of it.
#pragma once

#include "backends/cuda/device/types.cuh"
#include "backends/cuda/sm90/fwd/params.h"

namespace headrace::cuda::sm90::fwd {

// `from` to the units of `to`, the greater one, or both -inf.
__device__ __forceinline__ float reference_factor(float from, float to) {
  return from == to ? 1.0f : exp2f(4 * (from - to));
}

// Shares of the means of two splits in that of both, of which some row sees a key.
struct MergeShares {
  float before, next;
};

// `before` becomes the weight of both.
__device__ __forceinline__ MergeShares merge_weights(SplitWeight& before, const SplitWeight& next) {
  const float reference = fmaxf(before.reference, next.reference);
  const float kept = __fmul_rn(before.sum, reference_factor(before.reference, reference));
  const float added = __fmul_rn(next.sum, reference_factor(next.reference, reference));
  before = {reference, __fadd_rn(kept, added)};
  return {__fdiv_rn(kept, before.sum), __fdiv_rn(added, before.sum)};
}
__device__ __forceinline__ float merged(float before, float next, const MergeShares& shares) {
  return fmaf(next, shares.next, __fmul_rn(before, shares.before));
}

__device__ __forceinline__ float lse_of(const SplitWeight& x) {
  if (x.sum == 0) return -HUGE_VALF;
  if (isnan(x.sum)) return x.sum;
  if (fabsf(x.reference) > kLargestReference) return 2 * x.reference;
  return fmaf(x.reference, 4 * kLn2, logf(x.sum));
}

}  // namespace headrace::cuda::sm90::fwd
