// Attention over quantised keys in pages: few rows, many keys. Eight warps share the blocks of a
// chunk of keys (warp.cuh) and meet in shared memory. Chunks meet in the order of their keys: in a
// kernel behind this one (merge_chunks), or in the CTA that takes all of a prefill's.
#pragma once

#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/sm80/codes/warp.cuh"

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
  tile.first_row = tile_idx * kTileRows;
  const int rows = static_cast<int>(tile.sequence.seqlen_q) * p.group - tile.first_row;
  tile.num_rows = min(max(rows, 0), kTileRows);
  return tile;
}
__device__ inline int num_chunks_of(const Tile& tile) {
  return max((static_cast<int>(tile.sequence.seqlen_k) + kChunkKeys - 1) / kChunkKeys, 1);
}

// The ring of a warp, and its results when the ring is empty.
template <int kDim, class Format, int kStages>
union WarpMemory {
  Stage<kDim, Format> ring[kStages];
  struct {
    float o[kTileRows][kDim];
    float reference[kTileRows], sum[kTileRows];
  } result;
};

template <class Element, int kDim, class Format, int kStages>
__global__ void __launch_bounds__(32 * kWarps, 2) attend(const __grid_constant__ Params p) {
  extern __shared__ uint4 smem[];
  auto* memory = reinterpret_cast<WarpMemory<kDim, Format, kStages>*>(smem);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  const bool is_split = p.partial != nullptr;
  const int idx = static_cast<int>(blockIdx.x);
  const int split = is_split ? idx % p.max_chunks : 0;
  const Tile tile = tile_of(p, is_split ? idx / p.max_chunks : idx, thread == 0 && split == 0);
  const int num_chunks = num_chunks_of(tile);
  if (tile.num_rows == 0 || split >= num_chunks) return;
  const int last_chunk = is_split ? split + 1 : num_chunks;
  Warp<Element, kDim, Format, kStages> mine(p, tile, memory[warp].ring);
  const int shift = static_cast<int>(tile.sequence.seqlen_k - tile.sequence.seqlen_q);
  const int first_position = p.by_group.divide(tile.first_row) + shift;
  const int last_position = p.by_group.divide(tile.first_row + tile.num_rows - 1) + shift;
  const int begin = p.window_left < 0 ? 0 : max(first_position - p.window_left, 0);
  // The last row sees the most keys.
  const int end = max(
      p.k_recent.data == nullptr ? last_position + 1 : last_position / kBlockKeys * kBlockKeys, 0);
  const int row = thread / 32, column = thread % 32 * Result<kDim>::kElements;
  Result<kDim> all;
  all.clear();
  for (int chunk = split; chunk < last_chunk; ++chunk) {
    const int first = chunk * kChunkKeys, last = first + kChunkKeys;
    mine.add_blocks(max(first, begin), min(last, end), warp);
    mine.add_recent(first, last, warp);
    auto& result = memory[warp].result;
    mine.store(&result.o[0][0], result.reference, result.sum);
    __syncthreads();
    Result<kDim> of_chunk;
    of_chunk.clear();
    for (int w = 0; w < kWarps; ++w) {
      Result<kDim> part;
      const auto& of_warp = memory[w].result;
      for (int i = 0; i < Result<kDim>::kElements; ++i) part.o[i] = of_warp.o[row][column + i];
      part.reference = of_warp.reference[row];
      part.sum = of_warp.sum[row];
      of_chunk.merge(part);
    }
    __syncthreads();
    if (is_split && num_chunks > 1) {
      if (row >= tile.num_rows) return;
      float* to = partial_of<kDim>(p, tile, row, chunk);
      for (int i = 0; i < Result<kDim>::kElements; ++i) to[column + i] = of_chunk.o[i];
      if (column == 0) {
        to[kDim] = of_chunk.reference;
        to[kDim + 1] = of_chunk.sum;
      }
      return;
    }
    all.merge(of_chunk);
  }
  if (row < tile.num_rows) store_row<Element>(p, tile, row, column, all);
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

template <class Element, int kDim, class Format>
Status launch_attend(LaunchShape shape, const Params& p, Stream stream) {
  // As many stages, up to five, as fit kLargeRing.
  constexpr int kFitting = static_cast<int>(kLargeRing / (kWarps * sizeof(Stage<kDim, Format>)));
  constexpr int kStages = kFitting < 5 ? kFitting : 5;
  using Memory = WarpMemory<kDim, Format, kStages>;
  using Small = WarpMemory<kDim, Format, 2>;
  static AllowedSmem allowed, allowed_small;
  auto* cuda_stream = static_cast<cudaStream_t>(stream);
  if (p.has_large_ring) {
    shape.smem_bytes = kWarps * sizeof(Memory);
    HEADRACE_TRY(allow_smem(shape, attend<Element, kDim, Format, kStages>, allowed));
    return headrace::cuda::launch(shape, cuda_stream, attend<Element, kDim, Format, kStages>, p);
  }
  shape.smem_bytes = kWarps * sizeof(Small);
  HEADRACE_TRY(allow_smem(shape, attend<Element, kDim, Format, 2>, allowed_small));
  return headrace::cuda::launch(shape, cuda_stream, attend<Element, kDim, Format, 2>, p);
}

template <class Element, int kDim>
Status launch_format(const char* name, const Params& p, DType format, Stream stream) {
  const std::int64_t num_tiles = p.sizes.batch * p.sizes.num_kv_heads * p.num_tiles;
  const bool is_split = p.partial != nullptr;
  const LaunchShape shape{
      .name = name,
      .grid = dim3(static_cast<unsigned>(num_tiles * (is_split ? p.max_chunks : 1))),
      .block = dim3(32 * kWarps)};
  const auto attend_format = format == DType::i8       ? launch_attend<Element, kDim, Int8Format>
                             : format == DType::f8e4m3 ? launch_attend<Element, kDim, E4m3Format>
                                                       : launch_attend<Element, kDim, Int4Format>;
  HEADRACE_TRY(attend_format(shape, p, stream));
  if (!is_split) return std::nullopt;
  const LaunchShape merge{
      .name = name, .grid = dim3(static_cast<unsigned>(num_tiles)), .block = dim3(32 * kWarps)};
  return headrace::cuda::launch(merge, static_cast<cudaStream_t>(stream),
                                merge_chunks<Element, kDim>, p);
}

}  // namespace headrace::cuda::sm80::codes
