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
constexpr int kAtOnce = 8;                           // splits

__device__ __forceinline__ float weight_of(const SplitWeight& x, float reference) {
  return x.sum == 0 ? 0.0f : x.sum * exp2f(4 * (x.reference - reference));
}

__device__ __forceinline__ float lse_of(const SplitWeight& x) {
  if (fabsf(x.reference) > kLargestReference) return 2 * x.reference;
  return fmaf(x.reference, 4 * kLn2, logf(x.sum));
}

// The weight of all keys of a row. A lane has every 32nd split.
__device__ __forceinline__ SplitWeight total_of(const SplitWeight* of_row, int num_splits, int rows,
                                                int lane) {
  SplitWeight total{-HUGE_VALF, 0};
  for (int i = lane; i < num_splits; i += 32)
    total.reference = fmaxf(total.reference, of_row[std::int64_t{i} * rows].reference);
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2)
    total.reference = fmaxf(total.reference, __shfl_xor_sync(~0u, total.reference, mask));
  for (int i = lane; i < num_splits; i += 32)
    total.sum += weight_of(of_row[std::int64_t{i} * rows], total.reference);
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) total.sum += __shfl_xor_sync(~0u, total.sum, mask);
  return total;
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
  const SplitWeight total = total_of(weights, splits, x.rows, lane);
  float4 value[kColumnGroups];
  for (float4& v : value) v = {-0.0f, -0.0f, -0.0f, -0.0f};  // which changes no first addend
  // O of several splits is on its way at once. That of a split in which the row sees no key is not
  // written.
  for (int first_split = 0; first_split < splits; first_split += kAtOnce) {
    SplitWeight own[kAtOnce];
    float4 o[kAtOnce][kColumnGroups];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int split = first_split + i;
      own[i] = split < splits ? weights[std::int64_t{split} * x.rows] : SplitWeight{0, 0};
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
      for (int c = 0; c < kColumnGroups; ++c)
        if (own[i].sum != 0 && c * 128 + lane * 4 < columns)
          o[i][c] = *reinterpret_cast<const float4*>(
              out + std::int64_t{first_split + i} * x.rows * columns + c * 128);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (own[i].sum == 0) continue;
      const float share = weight_of(own[i], total.reference) / total.sum;
#pragma unroll
      for (int c = 0; c < kColumnGroups; ++c)
        value[c] = {fmaf(o[i][c].x, share, value[c].x), fmaf(o[i][c].y, share, value[c].y),
                    fmaf(o[i][c].z, share, value[c].z), fmaf(o[i][c].w, share, value[c].w)};
    }
  }
  const bool is_empty = total.sum == 0;
  const std::int64_t row_q = sequence.row_q + row / p.tiles.pack;
  const int head = head_idx % p.tiles.tile_heads * p.tiles.pack + row % p.tiles.pack;
  if (lane == 0)
    store_lse(p.rows.lse, batch_idx, head, row_q, is_empty ? -HUGE_VALF : lse_of(total));
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
