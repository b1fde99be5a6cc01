// Combines the partial results of a row whose keys are split, from right to left as tiles that
// merge theirs. A warp has a row, a lane four columns of each 128.
#include "backends/cuda/common/element.cuh"
#include "backends/cuda/common/lengths.cuh"
#include "backends/cuda/common/row_epilogue.cuh"
#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sm90/element.cuh"
#include "backends/cuda/sm90/fwd/config.h"
#include "backends/cuda/sm90/fwd/launch.h"
#include "backends/cuda/sm90/fwd/merge.cuh"
#include "base/math.h"

namespace headrace::cuda::sm90::fwd {
namespace {

constexpr int kCombineWarps = 4, kColumnGroups = 2;  // up to 256 columns
constexpr int kAtOnce = 8;                           // splits

// merge_weights() of 32 splits, one after the other: lane i gets the shares of its split and of
// those before it. `total`: the weight of all splits before, then with these.
__device__ __forceinline__ MergeShares shares_of_lane(const SplitWeight& own, SplitWeight& total,
                                                      int lane) {
  float top = own.sum == 0 ? -HUGE_VALF : own.reference;
  const float added_reference = top;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float below = __shfl_up_sync(~0u, top, step);
    if (lane >= step) top = fmaxf(top, below);
  }
  top = fmaxf(top, total.reference);
  const float above = __shfl_up_sync(~0u, top, 1);
  const float kept_factor = reference_factor(lane == 0 ? total.reference : above, top);
  const float added =
      own.sum == 0 ? 0.0f : __fmul_rn(own.sum, reference_factor(added_reference, top));
  // Only the sums follow one another.
  float kept_of_lane = 0, sum_of_lane = 0;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const float kept = __fmul_rn(total.sum, __shfl_sync(~0u, kept_factor, i));
    total.sum = __fadd_rn(kept, __shfl_sync(~0u, added, i));
    kept_of_lane = lane == i ? kept : kept_of_lane;
    sum_of_lane = lane == i ? total.sum : sum_of_lane;
  }
  total.reference = __shfl_sync(~0u, top, 31);
  return {__fdiv_rn(kept_of_lane, sum_of_lane), __fdiv_rn(added, sum_of_lane)};
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
  // Every sequence comes by here, not all by the first CTA of the tiles.
  const bool reports = lane == 0 && row == 0 && head_idx % p.tiles.tile_heads == 0;
  const Sequence sequence =
      sequence_with_used_keys(p.sizes, p.lengths, p.used_keys, batch_idx, reports);
  if (row >= sequence.seqlen_q * p.tiles.pack) return;
  const int splits = num_splits(static_cast<int>(sequence.seqlen_k));
  const int columns = static_cast<int>(p.sizes.head_dim_v);
  const std::int64_t first = std::int64_t{head_idx} * x.max_splits * x.rows + row;
  const SplitWeight* const weights = x.weights + first;
  const float* const out = x.out + first * columns + lane * 4;
  SplitWeight total{-HUGE_VALF, 0};
  float4 value[kColumnGroups];
  for (float4& v : value) v = {-0.0f, -0.0f, -0.0f, -0.0f};  // which changes no first addend
  for (int done = 0; done < splits; done += 32) {
    const auto split = [=](int i) { return std::int64_t{splits} - 1 - done - i; };
    const SplitWeight own =
        done + lane < splits ? weights[split(lane) * x.rows] : SplitWeight{0, 0};
    const MergeShares shares = shares_of_lane(own, total, lane);
    // O of several splits is on its way at once. That of a split in which the row sees no key is
    // not written.
    for (int at = 0; at < min(32, splits - done); at += kAtOnce) {
      float4 o[kAtOnce][kColumnGroups];
      float sum[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        sum[i] = __shfl_sync(~0u, own.sum, at + i);
#pragma unroll
        for (int c = 0; c < kColumnGroups; ++c)
          if (sum[i] != 0 && c * 128 + lane * 4 < columns)
            o[i][c] = *reinterpret_cast<const float4*>(
                out + split(at + i) * x.rows * columns + c * 128);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const MergeShares of_split = {__shfl_sync(~0u, shares.before, at + i),
                                      __shfl_sync(~0u, shares.next, at + i)};
        if (sum[i] == 0) continue;
#pragma unroll
        for (int c = 0; c < kColumnGroups; ++c)
          value[c] = {
              merged(value[c].x, o[i][c].x, of_split), merged(value[c].y, o[i][c].y, of_split),
              merged(value[c].z, o[i][c].z, of_split), merged(value[c].w, o[i][c].w, of_split)};
      }
    }
  }
  const bool is_empty = total.sum == 0;
  const std::int64_t row_q = sequence.row_q + row / p.tiles.pack;
  const int head = head_idx % p.tiles.tile_heads * p.tiles.pack + row % p.tiles.pack;
  if (lane == 0) store_lse(p.rows.lse, batch_idx, head, row_q, lse_of(total));
  auto* const to = static_cast<typename Element::Stored*>(p.out.data) +
                   row_offset(p.out, p.sizes.is_ragged != 0 ? 0 : batch_idx, row_q, head);
#pragma unroll
  for (int c = 0; c < kColumnGroups; ++c) {
    const int column = c * 128 + lane * 4;
    if (column >= columns) continue;
    const float4 v = is_empty ? float4{0, 0, 0, 0} : value[c];
    *reinterpret_cast<HalfChunk*>(to +
                                  column) = {{Element::pack(v.x, v.y), Element::pack(v.z, v.w)}};
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
