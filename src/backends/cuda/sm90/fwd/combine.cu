// Combines the partial results of a row whose keys are split, from right to left as tiles that
// merge theirs. A warp has 128 columns of a row, a lane four of them. Of few sequences most of the
// time is that of the instructions to arrive, so there are few, and they run once before there is
// anything to combine.
#include "backends/cuda/common/element.cuh"
#include "backends/cuda/common/lengths.cuh"
#include "backends/cuda/common/row_epilogue.cuh"
#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sm90/element.cuh"
#include "backends/cuda/sm90/fwd/combine.h"
#include "backends/cuda/sm90/fwd/config.h"
#include "backends/cuda/sm90/fwd/merge.cuh"
#include "base/math.h"

namespace headrace::cuda::sm90::fwd {
namespace {

constexpr int kCombineWarps = 4, kWarpColumns = 128;
constexpr int kAtOnce = 8;  // splits

// merge_weights() of `count` splits, up to 32, one after the other: lane i gets the shares of its
// split and of those before it. `total`: the weight of all splits before, then with these.
__device__ __forceinline__ MergeShares shares_of_lane(const SplitWeight& own, SplitWeight& total,
                                                      int count, int lane) {
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
#pragma unroll 8
  for (int i = 0; i < count; ++i) {
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
  const int lane = static_cast<int>(threadIdx.x) % 32,
            columns = static_cast<int>(p.sizes.head_dim_v);
  const u32 i = blockIdx.x * kCombineWarps + threadIdx.x / 32;
  const u32 head_idx = i / static_cast<u32>(x.rows), row = i - head_idx * static_cast<u32>(x.rows);
  const int batch_idx = static_cast<int>(head_idx) / p.tiles.tile_heads;  // head_idx: of all tiles
  const int column = static_cast<int>(blockIdx.y) * kWarpColumns + lane * 4;
  if (batch_idx >= p.sizes.batch) return;
  const std::int64_t first = std::int64_t{head_idx} * x.max_splits * x.rows + row;
  const auto* const weights = reinterpret_cast<const float2*>(x.weights + first);
  const float* const out = x.out + first * columns + column;
  Sequence sequence{};
  SplitWeight total;
  float value[4];
  int splits = 1;
#pragma unroll 1
  for (bool is_rehearsal = true;; is_rehearsal = false) {
    if (!is_rehearsal) {
      griddep_wait();
      // Every sequence comes by here, not all by the first CTA of the tiles.
      const bool reports = threadIdx.x % 32 == 0 && row == 0 && blockIdx.y == 0;
      sequence = sequence_with_used_keys(p.sizes, p.lengths, p.used_keys, batch_idx, reports);
      if (row >= sequence.seqlen_q * p.tiles.pack) return;
      splits = num_splits(static_cast<int>(sequence.seqlen_k), x.num_short);
    }
    total = {-HUGE_VALF, 0};
    for (float& v : value) v = -0.0f;  // which changes no first addend
#pragma unroll 1
    for (int done = 0; done < splits; done += 32) {
      const int count = min(32, splits - done);
      const auto at = [=](int j) { return std::int64_t{splits - 1 - done - j} * x.rows; };
      float2 own{0, 0};
      if (!is_rehearsal && lane < count) own = __ldcg(weights + at(lane));
      // O of several splits is on its way at once, the first beside the weights. That of a split in
      // which the row sees no key is not written, and not added.
      float4 o[kAtOnce] = {};
      const auto load = [&](int j0) {
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j)
          if (!is_rehearsal && j0 + j < count && column < columns)
            o[j] = __ldcg(reinterpret_cast<const float4*>(out + at(j0 + j) * columns));
      };
      load(0);
      const MergeShares shares = shares_of_lane({own.x, own.y}, total, count, lane);
#pragma unroll 1
      for (int j0 = 0; j0 < count; j0 += kAtOnce) {
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          const MergeShares of_split = {__shfl_sync(~0u, shares.before, j0 + j),
                                        __shfl_sync(~0u, shares.next, j0 + j)};
          const bool is_added = __shfl_sync(~0u, own.y, j0 + j) != 0;
          const float of_o[4] = {o[j].x, o[j].y, o[j].z, o[j].w};
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const float both = merged(value[c], of_o[c], of_split);
            value[c] = is_added ? both : value[c];
          }
        }
        if (j0 + kAtOnce < count) load(j0 + kAtOnce);
      }
    }
    if (!is_rehearsal) break;
  }
  const bool is_empty = total.sum == 0;
  const int query = static_cast<int>(row) / p.tiles.pack;
  const std::int64_t row_q = sequence.row_q + query;
  const int head =
      (static_cast<int>(head_idx) - batch_idx * p.tiles.tile_heads - query) * p.tiles.pack +
      static_cast<int>(row);
  if (lane == 0 && blockIdx.y == 0) store_lse(p.rows.lse, batch_idx, head, row_q, lse_of(total));
  if (column >= columns) return;
  auto* const to = static_cast<typename Element::Stored*>(p.out.data) +
                   row_offset(p.out, p.sizes.is_ragged != 0 ? 0 : batch_idx, row_q, head) + column;
#pragma unroll
  for (float& v : value) v = is_empty ? 0.0f : v;
  *reinterpret_cast<HalfChunk*>(to) = {
      {Element::pack(value[0], value[1]), Element::pack(value[2], value[3])}};
}

}  // namespace

Status launch_combine(const Params& p, DType dtype, Stream stream) {
  const std::int64_t rows = p.sizes.batch * p.tiles.tile_heads * p.splits.rows;
  const LaunchShape shape{
      .name = "cuda_sm90_fwd combine",
      .grid = dim3(static_cast<unsigned>(ceil_div<std::int64_t>(rows, kCombineWarps)),
                   static_cast<unsigned>(ceil_div<std::int64_t>(p.sizes.head_dim_v, kWarpColumns))),
      .block = dim3(32 * kCombineWarps),
      .use_pdl = true};
  const auto kernel = dtype == DType::bf16 ? combine<Bf16Element> : combine<F16Element>;
  return launch(shape, static_cast<cudaStream_t>(stream), kernel, p);
}

}  // namespace headrace::cuda::sm90::fwd
