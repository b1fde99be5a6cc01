// The merge of attention states: a warp per row. The weights of the states are computed once, in
// shared memory; every column is then a sum in the order of the states.
#include <algorithm>

#include "backends/cuda/common/constants.h"
#include "backends/cuda/common/element.cuh"
#include "backends/cuda/elementwise/merge_states.h"
#include "backends/cuda/runtime/launch.cuh"
#include "base/math.h"

namespace headrace::cuda::merge {
namespace {

constexpr int kWarp = 32, kWarps = 4;  // of a CTA
static_assert(sizeof(MergeStatesArgs) <= 4096, "parameters of a kernel");

constexpr float kNoKey = -1;  // the weight of a state with an lse of -inf

// The lse of a row, and in weights[0, num_states) the weight of every state.
__device__ inline float state_weights(const MergeStatesArgs& p, const StateRow& at, int lane,
                                      float* weights) {
  float top = -HUGE_VALF;
  for (int i = lane; i < p.num_states; i += kWarp) {
    const float lse = p.lses[i][at.in(p.state_lse)];
    weights[i] = lse;
    top = fmaxf(top, lse);
  }
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, mask));
  for (int i = lane; i < p.num_states; i += kWarp) {
    const float lse = weights[i];
    weights[i] = lse == -HUGE_VALF ? kNoKey
                 : lse == top      ? 1.0f  // also of an lse of +inf
                                   : expf(lse - top);
  }
  __syncwarp();
  float sum = 0.0f;
  for (int i = 0; i < p.num_states; ++i)  // the same in every lane
    if (weights[i] != kNoKey) sum += weights[i];
  __syncwarp();
  for (int i = lane; i < p.num_states; i += kWarp)
    if (weights[i] != kNoKey) weights[i] /= sum;
  __syncwarp();
  return sum == 0.0f ? -HUGE_VALF : top + logf(sum);
}

__global__ void __launch_bounds__(kWarp* kWarps)
    merge_rows(const __grid_constant__ MergeStatesArgs p) {
  __shared__ float all_weights[kWarps][kMaxStates];
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  float* weights = all_weights[warp];
  const std::int64_t rows = num_rows(p), step = static_cast<std::int64_t>(gridDim.x) * kWarps;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp; row < rows;
       row += step) {
    const StateRow at = state_row(p, row);
    const float lse = state_weights(p, at, lane, weights);
    for (std::int64_t d = lane; d < p.head_dim_v; d += kWarp) {
      float sum = 0.0f;
      for (int i = 0; i < p.num_states; ++i)
        if (weights[i] != kNoKey)
          sum = fmaf(load_real(p.dtype, p.outs[i], at.in(p.state) + d), weights[i], sum);
      store_real(p.out_dtype, p.out.data, at.in(p.out) + d, sum);
    }
    if (lane == 0 && p.lse.data != nullptr) static_cast<float*>(p.lse.data)[at.in(p.lse)] = lse;
    __syncwarp();  // the weights have been read before the next row's are written
  }
}

}  // namespace

Status launch(const MergeStatesArgs& args, Stream stream) {
  const std::int64_t num_ctas = ceil_div<std::int64_t>(num_rows(args), kWarps);
  const LaunchShape shape{.name = "merge_states",
                          .grid = dim3(static_cast<unsigned>(std::min(num_ctas, kMaxGridX))),
                          .block = dim3(kWarp * kWarps)};
  return headrace::cuda::launch(shape, static_cast<cudaStream_t>(stream), merge_rows, args);
}

}  // namespace headrace::cuda::merge
