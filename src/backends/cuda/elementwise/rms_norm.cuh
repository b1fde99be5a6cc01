// RMS norm of a row of bf16. All kernels that compute it share the order of the sum and the
// roundings, so they give equal bits: thread n of kThreads sums the squares of every kThreads-th
// vector of kVec elements, a shuffle tree adds the lanes of a warp, then the warps are added in
// their order.
#pragma once

#include <cstdint>

#include "backends/cuda/sm90/element.cuh"

namespace headrace::cuda::rms {

inline constexpr int kThreads = 256, kWarps = kThreads / 32, kVec = 8;

struct Weights {
  float4 low, high;
};
__device__ __forceinline__ Weights load_weights(const float* weight, std::int64_t i) {
  const auto* from = reinterpret_cast<const float4*>(weight + i);
  return {__ldg(from), __ldg(from + 1)};
}

__device__ __forceinline__ void add_squares(const sm90::Chunk& x, float& sum) {
#pragma unroll
  for (int w = 0; w < kVec / 2; ++w) {
    const float2 pair = sm90::Bf16Element::unpack(x.words[w]);
    sum += pair.x * pair.x;
    sum += pair.y * pair.y;
  }
}
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) x += __shfl_xor_sync(~0u, x, mask);
  return x;
}
// warp_sums: [kWarps]
__device__ __forceinline__ float scale_of(const float* warp_sums, std::int64_t width, float eps) {
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += warp_sums[warp];
  return 1 / sqrtf(sum / static_cast<float>(width) + eps);
}

__device__ __forceinline__ sm90::Chunk scaled(const sm90::Chunk& x, float scale,
                                              const Weights& weights) {
  const float w[kVec] = {weights.low.x,  weights.low.y,  weights.low.z,  weights.low.w,
                         weights.high.x, weights.high.y, weights.high.z, weights.high.w};
  sm90::Chunk out;
#pragma unroll
  for (int i = 0; i < kVec / 2; ++i) {
    const float2 pair = sm90::Bf16Element::unpack(x.words[i]);
    out.words[i] =
        sm90::Bf16Element::pack(pair.x * scale * w[2 * i], pair.y * scale * w[2 * i + 1]);
  }
  return out;
}

}  // namespace headrace::cuda::rms
