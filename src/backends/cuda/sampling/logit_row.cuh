// What the passes over rows of logits share.
#pragma once

#include "backends/cuda/common/constants.h"
#include "backends/cuda/device/types.cuh"
#include "core/sampling_args.h"

namespace headrace::cuda {

inline constexpr u32 kAll = 0xffffffffu;  // lanes

__device__ __forceinline__ float nan_or_max(float a, float b) {
  return isnan(a) || isnan(b) ? NAN : fmaxf(a, b);
}
__device__ __forceinline__ float warp_nan_or_max(float x) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) x = nan_or_max(x, __shfl_xor_sync(kAll, x, mask));
  return x;
}

// Of a lane and those before it.
template <class T>
__device__ __forceinline__ T warp_scan(T x) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const T other = __shfl_up_sync(kAll, x, step);
    if (static_cast<int>(threadIdx.x) % 32 >= step) x += other;
  }
  return x;
}

// A logit after the word of its mask. Adds -infinity rather than storing it, so that a NaN of the
// model is still found, and 0 beside it, as the CPU does.
constexpr std::uint64_t kEvery = ~std::uint64_t{0};
__device__ __forceinline__ float masked(float logit, std::uint64_t allowed, std::int64_t token) {
  if (allowed == kEvery) return logit;
  return __fadd_rn(logit, (allowed >> token % kLogitBlock & 1) != 0 ? 0.0f : -INFINITY);
}
__device__ __forceinline__ std::uint64_t word_of(const std::uint64_t* mask, std::int64_t block) {
  return mask == nullptr ? kEvery : mask[block];
}
__device__ __forceinline__ float logit_at(const LogitQuery& query, std::int64_t token) {
  return masked(query.row[token], word_of(query.mask, token / kLogitBlock), token);
}

// The largest logit of a row, NaN if a maximum of its blocks is; every thread gets it.
template <int kThreads>
__device__ __forceinline__ float row_max(const float* maxima, std::int64_t num_maxima) {
  __shared__ float of_warps[kThreads / 32];
  float max = -INFINITY;
  for (std::int64_t i = threadIdx.x; i < num_maxima; i += kThreads)
    max = nan_or_max(max, maxima[i]);
  max = warp_nan_or_max(max);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = max;
  __syncthreads();
  for (const float other : of_warps) max = nan_or_max(max, other);
  return max;
}

// exp_softmax of backends/cpu/simd/exp-inl.h, operation by operation.
__device__ __forceinline__ float weight_of(float logit, float max, float temperature) {
  constexpr float kLog2E = 0x1.715476p+0f, kLn2High = 0x1.62e430p-1f, kLn2Low = -0x1.05c610p-29f;
  constexpr float kRounder = 0x1.8p23f + 127;  // with the bias of the exponent
  const float x = __fdiv_rn(logit - max, temperature);
  float n = fmaf(x, kLog2E, kRounder);
  const float scale = __uint_as_float(__float_as_uint(n) << 23);
  n = __fsub_rn(n, kRounder);
  const float r = fmaf(n, -kLn2Low, fmaf(n, -kLn2High, x));
  float q = fmaf(0x1.6a2402p-10f, r, 0x1.123a1ep-7f);
  q = fmaf(q, r, 0x1.5558f2p-5f);
  q = fmaf(q, r, 0x1.555492p-3f);
  q = fmaf(q, r, 0x1.fffffcp-2f);
  q = fmaf(q, r, 1.0f);
  q = fmaf(q, r, 1.0f);
  return x < -0x1.5d58a0p+6f ? 0.0f : __fmul_rn(q, scale);
}

}  // namespace headrace::cuda
