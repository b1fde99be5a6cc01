// Attention over quantised keys in pages: few rows, many keys. Eight warps share the blocks of a
// chunk of keys (warp.cuh) and meet in shared memory. Chunks meet in the order of their keys: in a
// kernel behind this one (merge_chunks), or in the CTA that takes all of a prefill's.
#pragma once

#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sm80/codes/warp.cuh"
#include "backends/cuda/sm80/codes/zero_points.cuh"

namespace headrace::cuda::sm80::codes {

// A row over some of its keys, in the threads that share it: four elements of O each.
template <int kDim>
struct Result {
  static constexpr int kElements = kTileRows * kDim / (32 * kWarps);
  float o[kElements];
  float reference, sum;  // 0: no key

  __device__ void clear() {
    for (float& x : o) x = 0;
    reference = -HUGE_VALF;
    sum = 0;
  }
  // Adds keys of a reference that is not larger.
  __device__ __forceinline__ void add(const float* from, float of_keys, float sum_of_keys) {
    const float factor = of_keys == -HUGE_VALF ? 0.0f : ex2_approx_ftz(of_keys - reference);
    sum = fmaf(sum_of_keys, factor, sum);
    for (int i = 0; i < kElements; ++i) o[i] = fmaf(from[i], factor, o[i]);
  }
  // Adds later keys.
  __device__ void merge(const Result& later) {
    const float top = fmaxf(reference, later.reference);
    if (later.reference == -HUGE_VALF && later.sum == 0) return;
    const float kept = reference == -HUGE_VALF ? 0.0f : exp2f(reference - top);
    const float added = later.reference == -HUGE_VALF ? 0.0f : exp2f(later.reference - top);
    sum = sum * kept + later.sum * added;
    for (int i = 0; i < kElements; ++i) o[i] = o[i] * kept + later.o[i] * added;
    reference = top;
  }
};

// Writes a row, by the threads that share it.
template <class Element, int kDim>
__device__ void store_row(const Params& p, const Tile& tile, int row, int column,
                          const Result<kDim>& result) {
  const int query = p.by_group.divide(tile.first_row + row);
  const std::int64_t head =
      std::int64_t{tile.kv_head} * p.group + tile.first_row + row - query * p.group;
  const std::int64_t q_row = tile.sequence.row_q + query;
  const bool is_empty = result.sum == 0;
  const float factor = is_empty ? 0.0f : 1.0f / result.sum;
  auto* out = static_cast<typename Element::Stored*>(p.out.data) +
              row_offset(p.out, tile.batch_idx, q_row, head) + column;
  for (int i = 0; i < Result<kDim>::kElements; ++i)
    store_real(out, i, is_empty ? 0.0f : result.o[i] * factor + 0.0f);
  if (p.lse.data == nullptr || column != 0) return;
  constexpr float kLn2 = 0.693147180559945f;
  static_cast<float*>(p.lse.data)[tile.batch_idx * p.lse.stride_batch + head * p.lse.stride_head +
                                  q_row * p.lse.stride_q] =
      is_empty ? -HUGE_VALF : (result.reference + log2f(result.sum)) * kLn2;
}

// A result of a chunk in memory.
template <int kDim>
__device__ float* partial_of(const Params& p, const Tile& tile, int row, int chunk) {
  const int query = p.by_group.divide(tile.first_row + row);
  const std::int64_t head =
      std::int64_t{tile.kv_head} * p.group + tile.first_row + row - query * p.group;
  const std::int64_t q_row =
      tile.sequence.row_q + query + (p.sizes.is_ragged ? 0 : tile.batch_idx * p.sizes.seqlen_q);
  return p.partial + ((q_row * p.sizes.num_heads + head) * p.max_chunks + chunk) * (kDim + 4);
}

__device__ inline Tile tile_of(const Params& p, int idx, bool reports) {
  const int tile_idx = idx % p.num_tiles, rest = idx / p.num_tiles;
  Tile tile{};
  tile.kv_head = rest % static_cast<int>(p.sizes.num_kv_heads);
  tile.batch_idx = rest / static_cast<int>(p.sizes.num_kv_heads);
  tile.sequence = sequence_with_used_keys(p.sizes, p.lengths, p.used_keys, tile.batch_idx,
                                          reports && tile_idx == 0 && tile.kv_head == 0);
  tile.first_row = tile_idx * p.tile_rows;
  const int rows = static_cast<int>(tile.sequence.seqlen_q) * p.group - tile.first_row;
  tile.num_rows = min(max(rows, 0), p.tile_rows);
  return tile;
}
__device__ inline int num_chunks_of(const Tile& tile) {
  return max((static_cast<int>(tile.sequence.seqlen_k) + kChunkKeys - 1) / kChunkKeys, 1);
}

template <class Warp>
__global__ void __launch_bounds__(32 * kWarps, 2) attend(const __grid_constant__ Params p) {
  constexpr int kDim = Warp::kDim;
  using Ring = typename Warp::RingOf;
  // Copies of 16 bytes arrive in sectors of 32.
  extern __shared__ __align__(128) uint4 smem[];
  __shared__ int free_stage[kWarps];
  __shared__ Common<kDim> common;
  // Of the chunks so far, not in registers: a warp needs all of those for its blocks.
  __shared__ Result<kDim> so_far[32 * kWarps];
  auto* const stages = reinterpret_cast<typename Warp::Stage_*>(smem);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  const int idx = static_cast<int>(blockIdx.x), split = idx % p.num_splits;
  const Tile tile = tile_of(p, idx / p.num_splits, thread == 0 && split == 0);
  const int num_chunks = num_chunks_of(tile), first_chunk = split * p.split_chunks;
  if (tile.num_rows == 0 || first_chunk >= num_chunks) return;
  const int last_chunk = min(first_chunk + p.split_chunks, num_chunks);
  const bool has_parts = p.partial != nullptr && num_chunks > 1;
  Warp mine(p, tile, stages + warp * Ring::kStages, common);
  auto& rows = mine.rows;
  if (thread < 32) common.offsets[thread] = mine.lane_offsets();
  if (thread == 0) {
    const Keys seen = rows.seen_by_any();
    common.keys = {max(seen.first, first_chunk * kChunkKeys),
                   min(seen.end, last_chunk * kChunkKeys)};
    common.seen_by_all = rows.seen_by_all();
  }
  __syncthreads();
  mine.start();
  if (warp == 0) mine.load_queries();  // while the first copies are under way
  __syncthreads();
  so_far[thread].clear();
  for (int chunk = first_chunk; chunk < last_chunk; ++chunk) {
    const int first = chunk * kChunkKeys, last = first + kChunkKeys;
    mine.add_until(last);
    rows.add_recent(first, last, warp);
    __syncwarp();  // every lane has read what the results replace
    const int free = mine.ring.tail;
    const int again = thread_again();
    const int row = again / 32, column = again % 32 * Result<kDim>::kElements;
    if (column == 0) free_stage[row] = free;
    rows.template store<Ring::kPieceRows>([&](int i) -> auto& {
      return Ring::piece(mine.ring.stages, free, i);
    });
    __syncthreads();
    Result<kDim> of_chunk;
    of_chunk.clear();
    if (row < tile.num_rows) {
      const auto from = [&](int w) -> const auto& {
        return Ring::piece(stages + w * Ring::kStages, free_stage[w], row / Ring::kPieceRows);
      };
      const int at = row % Ring::kPieceRows;
#pragma unroll
      for (int w = 0; w < kWarps; ++w)
        of_chunk.reference = fmaxf(of_chunk.reference, from(w).reference[at]);
#pragma unroll
      for (int w = 0; w < kWarps; ++w)
        of_chunk.add(from(w).o[at] + column, from(w).reference[at], from(w).sum[at]);
    }
    __syncthreads();
    if (!has_parts) {
      so_far[again].merge(of_chunk);
    } else if (row < tile.num_rows) {
      float* to = partial_of<kDim>(p, tile, row, chunk);
      for (int i = 0; i < Result<kDim>::kElements; ++i) to[column + i] = of_chunk.o[i];
      if (column == 0) {
        to[kDim] = of_chunk.reference;
        to[kDim + 1] = of_chunk.sum;
      }
    }
  }
  const int row = warp, column = thread % 32 * Result<kDim>::kElements;
  if (row < tile.num_rows && !has_parts)
    store_row<typename Warp::Element>(p, tile, row, column, so_far[thread]);
}

// Merges the chunks of a row in the order of their keys.
template <class Element, int kDim>
__global__ void __launch_bounds__(32 * kWarps) merge_chunks(const __grid_constant__ Params p) {
  const int thread = static_cast<int>(threadIdx.x);
  const Tile tile = tile_of(p, static_cast<int>(blockIdx.x), false);
  const int num_chunks = num_chunks_of(tile);
  const int row = thread / 32, column = thread % 32 * Result<kDim>::kElements;
  if (num_chunks == 1 || row >= tile.num_rows) return;
  Result<kDim> all;
  all.clear();
  for (int chunk = 0; chunk < num_chunks; ++chunk) {
    const float* from = partial_of<kDim>(p, tile, row, chunk);
    Result<kDim> part;
    for (int i = 0; i < Result<kDim>::kElements; ++i) part.o[i] = from[column + i];
    part.reference = from[kDim];
    part.sum = from[kDim + 1];
    all.merge(part);
  }
  store_row<Element>(p, tile, row, column, all);
}

// As many stages, up to five, as fit kLargeRing.
template <class Stage>
inline constexpr int kLargeStages = [] {
  constexpr int kFitting = static_cast<int>(kLargeRing / (kWarps * sizeof(Stage)));
  return kFitting < 5 ? kFitting : 5;
}();

template <class Warp>
Status launch_warp(LaunchShape shape, const Params& p, Stream stream) {
  static AllowedSmem allowed;
  shape.smem_bytes = kWarps * Warp::RingOf::kStages * sizeof(typename Warp::Stage_);
  HEADRACE_TRY(allow_smem(shape, attend<Warp>, allowed));
  return headrace::cuda::launch(shape, static_cast<cudaStream_t>(stream), attend<Warp>, p);
}
template <class Element, int kDim, class Format>
Status launch_attend(const LaunchShape& shape, const Params& p, Stream stream) {
  constexpr int kStages = kLargeStages<Stage<kDim, Format>>;
  return p.has_large_ring ? launch_warp<Warp<Element, kDim, Format, kStages>>(shape, p, stream)
                          : launch_warp<Warp<Element, kDim, Format, 2>>(shape, p, stream);
}
template <class Element, int kDim, int kBits>
Status launch_zero_points(const LaunchShape& shape, const Params& p, Stream stream) {
  constexpr int kStages = kLargeStages<ZeroPointStage<kDim, kBits>>;
  return p.has_large_ring
             ? launch_warp<ZeroPointWarp<Element, kDim, kBits, kStages>>(shape, p, stream)
             : launch_warp<ZeroPointWarp<Element, kDim, kBits, 2>>(shape, p, stream);
}

template <class Element, int kDim>
Status launch_format(const char* name, const Params& p, DType format, Stream stream) {
  const std::int64_t num_tiles = p.sizes.batch * p.sizes.num_kv_heads * p.num_tiles;
  const bool is_split = p.partial != nullptr;
  const LaunchShape shape{.name = name,
                          .grid = dim3(static_cast<unsigned>(num_tiles * p.num_splits)),
                          .block = dim3(32 * kWarps)};
  const auto attend_format = format == DType::i8       ? launch_attend<Element, kDim, Int8Format>
                             : format == DType::f8e4m3 ? launch_attend<Element, kDim, E4m3Format>
                             : format == DType::i4x2   ? launch_attend<Element, kDim, Int4Format>
                             : format == DType::u4x2   ? launch_zero_points<Element, kDim, 4>
                                                       : launch_zero_points<Element, kDim, 2>;
  HEADRACE_TRY(attend_format(shape, p, stream));
  if (!is_split) return std::nullopt;
  const LaunchShape merge{
      .name = name, .grid = dim3(static_cast<unsigned>(num_tiles)), .block = dim3(32 * kWarps)};
  return headrace::cuda::launch(merge, static_cast<cudaStream_t>(stream),
                                merge_chunks<Element, kDim>, p);
}

}  // namespace headrace::cuda::sm80::codes
