// Combines the partial results of a row whose keys are split, in the order of the keys. A warp has
// a row, a lane four columns of each 128.
#include "backends/cuda/common/element.cuh"
#include "backends/cuda/common/lengths.cuh"
#include "backends/cuda/common/row_epilogue.cuh"
#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sm90/element.cuh"
#include "backends/cuda/sm90/fwd/config.h"
#include "backends/cuda/sm90/fwd/launch.h"
#include "base/math.h"

namespace headrace::cuda::sm90::fwd {
namespace {

constexpr int kCombineWarps = 4, kColumnGroups = 2;  // up to 256 columns

// The largest lse of a row's splits.
__device__ __forceinline__ float largest_lse(const float* lse, int num_splits, int rows, int lane) {
  float top = -HUGE_VALF;
  for (int i = lane; i < num_splits; i += 32) top = fmaxf(top, lse[std::int64_t{i} * rows]);
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, mask));
  return top;
}

template <class Element>
__global__ void __launch_bounds__(32 * kCombineWarps) combine(const __grid_constant__ Params p) {
  const SplitArgs& x = p.splits;
  griddep_wait();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t i = std::int64_t{blockIdx.x} * kCombineWarps + threadIdx.x / 32;
  const int head_idx = static_cast<int>(i / x.rows), row = static_cast<int>(i % x.rows);
  const int batch_idx = head_idx / p.tiles.tile_heads;  // head_idx: of (sequence, tile head)
  if (batch_idx >= p.sizes.batch) return;
  const Sequence sequence =
      sequence_with_used_keys(p.sizes, p.lengths, p.used_keys, batch_idx, false);
  if (row >= sequence.seqlen_q * p.tiles.pack) return;
  const int splits = num_splits(static_cast<int>(sequence.seqlen_k)),
            columns = static_cast<int>(p.sizes.head_dim_v);
  const std::int64_t first = std::int64_t{head_idx} * x.max_splits * x.rows + row;
  const float* const lse = x.lse + first;
  const float* const out = x.out + first * columns + lane * 4;
  const float top = largest_lse(lse, splits, x.rows, lane);
  float sum = 0;
  float4 value[kColumnGroups] = {};
#pragma unroll 4
  for (int split = 0; split < splits; ++split) {
    const std::int64_t at = std::int64_t{split} * x.rows;
    const float of_split = lse[at];
    if (of_split == -HUGE_VALF) continue;  // the row sees no key of it, and O is not written
    const float weight = of_split == top ? 1.0f : expf(of_split - top);
    sum += weight;
#pragma unroll
    for (int c = 0; c < kColumnGroups; ++c) {
      if (c * 128 + lane * 4 >= columns) continue;
      const float4 o = *reinterpret_cast<const float4*>(out + at * columns + c * 128);
      value[c] = {fmaf(o.x, weight, value[c].x), fmaf(o.y, weight, value[c].y),
                  fmaf(o.z, weight, value[c].z), fmaf(o.w, weight, value[c].w)};
    }
  }
  const std::int64_t row_q = sequence.row_q + row / p.tiles.pack;
  const int head = head_idx % p.tiles.tile_heads * p.tiles.pack + row % p.tiles.pack;
  if (lane == 0)
    store_lse(p.rows.lse, batch_idx, head, row_q, sum == 0 ? -HUGE_VALF : top + logf(sum));
  auto* const to = static_cast<typename Element::Stored*>(p.out.data) +
                   row_offset(p.out, p.sizes.is_ragged != 0 ? 0 : batch_idx, row_q, head);
  const float divisor = sum == 0 ? 1.0f : sum;
#pragma unroll
  for (int c = 0; c < kColumnGroups; ++c) {
    const int column = c * 128 + lane * 4;
    if (column >= columns) continue;
    const float4 v = value[c];
    *reinterpret_cast<HalfChunk*>(to + column) = {
        {Element::pack(v.x / divisor, v.y / divisor), Element::pack(v.z / divisor, v.w / divisor)}};
  }
}

}  // namespace

Status launch_combine(const Call& call) {
  const Params& p = call.params;
  const std::int64_t rows = p.sizes.batch * p.tiles.tile_heads * p.splits.rows;
  const LaunchShape shape{
      .name = "cuda_sm90_fwd combine",
      .grid = dim3(static_cast<unsigned>(ceil_div<std::int64_t>(rows, kCombineWarps))),
      .block = dim3(32 * kCombineWarps),
      .use_pdl = true};
  const auto kernel = call.dtype == DType::bf16 ? combine<Bf16Element> : combine<F16Element>;
  return launch(shape, static_cast<cudaStream_t>(call.stream), kernel, p);
}

}  // namespace headrace::cuda::sm90::fwd
