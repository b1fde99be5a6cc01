// Tiles, shared memory, splits and the workspace of the sm80 forward: plain arithmetic, testable
// without a GPU.
#pragma once

#include "backends/cuda/sm80/config.h"

namespace headrace::cuda::sm80::fwd {

// tile.keys fixes the order of a row's sums, so it depends on dtype, head dims and features alone.
struct Tile {
  int dim;         // head_dim and head_dim_v are filled up to it with zeros
  int warps;       // of a CTA
  int row_blocks;  // of 16 rows, a warp
  int keys;
  int stages;  // 1: K and V take turns; 2: the next K and V arrive while this tile is computed
  bool q_in_registers;  // Q stays in registers
  int min_ctas;         // of a multiprocessor, for the register allocator

  constexpr int rows() const { return 16 * row_blocks * warps; }
  constexpr int threads() const { return 32 * warps; }
};

inline constexpr int kMaxWarps = 8;
// The README has the arithmetic behind these. General scores need registers of their own.
constexpr Tile tile_of(bool is_f32, int dim, bool is_general) {
  if (is_f32) {
    if (dim == 64) return {64, 4, 1, 32, 1, false, 4};
    if (dim == 128) return {128, 4, 1, 32, 1, false, 2};
    return {256, 4, 1, 16, 1, false, 2};
  }
  if (dim == 64 && is_general) return {64, 4, 2, 64, 2, true, 2};
  if (dim == 64) return {64, 4, 2, 128, 1, false, 2};
  if (dim == 128) return {128, 4, 2, is_general ? 32 : 64, 1, false, 2};
  return {256, 4, 1, 64, 1, false, 2};
}
// Plain scores of float and more than 128 columns, where a CTA may have what that takes: K and V
// are read from shared memory for twice as many rows.
inline constexpr Tile kLargeTile = {256, 8, 1, 32, 1, false, 1};

template <bool kIsF32, int kDim, bool kIsGeneral, bool kIsLarge = false>
struct TileOf {  // as a type, for templates
  static constexpr Tile kTile = kIsLarge ? kLargeTile : tile_of(kIsF32, kDim, kIsGeneral);
};

// Rows and keys of a sequence are counted in 32 bits, with room for a tile.
inline constexpr std::int64_t kMaxCount = (std::int64_t{1} << 31) - (1 << 16);

// Where things lie in shared memory, in bytes. A tile begins at a multiple of its rows' length, as
// the swizzle wants it.
struct SmemPlan {
  int tile_bytes;  // of K, and of V
  int k, v, q, rows, work_tile, total;
};
inline constexpr int kWorkTileBytes = 384;
constexpr SmemPlan smem_plan(Tile tile, int element_bytes, bool is_general) {
  SmemPlan x{};
  const int row_bytes = tile.dim * element_bytes;
  x.tile_bytes = tile.keys * row_bytes;
  x.k = 0;
  x.v = tile.stages * x.tile_bytes;
  x.q = 2 * tile.stages * x.tile_bytes;
  x.rows = x.q + tile.rows() * row_bytes;
  x.work_tile = x.rows + (is_general ? tile.rows() * kScoreRowBytes : 0);
  x.total = x.work_tile + kWorkTileBytes;
  return x;
}

// Whether a problem takes the large tile on a GPU with `smem_bytes` of shared memory a CTA (0:
// nobody knows).
constexpr bool takes_large_tile(const Problem& p, std::size_t smem_bytes) {
  return dtype_of(p) == DType::f32 && head_dim_bucket(p) == kLargeTile.dim &&
         !needs_general_scores(p) &&
         static_cast<std::size_t>(smem_plan(kLargeTile, 4, false).total) <= smem_bytes;
}
constexpr Tile tile_of(const Problem& p, std::size_t smem_bytes) {
  if (takes_large_tile(p, smem_bytes)) return kLargeTile;
  return tile_of(dtype_of(p) == DType::f32, head_dim_bucket(p), needs_general_scores(p));
}

// Divisions by the group size in a tile: exact for quotients of row < group + 128.
constexpr std::uint32_t group_inverse_of(std::int64_t group) {
  const auto divisor = static_cast<std::uint64_t>(group);
  return static_cast<std::uint32_t>(((std::uint64_t{1} << 32) + divisor - 1) / divisor);
}

// Up to this many rows (queries x heads of a group) the keys may be split among CTAs.
inline constexpr std::int64_t kMaxSplitRows = 64;
inline constexpr std::int64_t kMinSplitKeys = 256;
inline constexpr std::int64_t kMaxSplits = 64;

// How one sequence is computed: a function of its own lengths, the head dims and the options, so
// that a row has the same bits in every batch.
struct SplitPlan {
  std::int64_t num_splits, split_keys;
};
constexpr SplitPlan plan_splits(const Problem& p, Tile tile, std::int64_t seqlen_q,
                                std::int64_t seqlen_k) {
  const auto largest = [](std::int64_t a, std::int64_t b) { return a > b ? a : b; };
  const std::int64_t keys = largest(seqlen_k, 1);
  if (p.strict_rows || seqlen_q * group_size(p) > kMaxSplitRows) return {1, keys};
  std::int64_t split = largest(kMinSplitKeys, (keys + kMaxSplits - 1) / kMaxSplits);
  if (p.num_splits > 0) split = (keys + p.num_splits - 1) / p.num_splits;
  split = (split + tile.keys - 1) / tile.keys * tile.keys;
  return {(keys + split - 1) / split, split};
}

// Results of the splits before they are combined: [batch * num_kv_heads][splits][rows][row_floats],
// a row with its reference, its sum and its largest score behind it.
struct SplitLayout {
  std::int64_t max_splits, rows, row_floats;
  constexpr std::int64_t bytes(std::int64_t batch_heads) const {
    return saturating_product(
        {batch_heads, max_splits, rows, row_floats, std::int64_t{sizeof(float)}});
  }
};
constexpr SplitLayout split_layout(const Problem& p, Tile tile) {
  const std::int64_t rows = p.seqlen_q * group_size(p);
  SplitLayout x{1, rows < kMaxSplitRows ? rows : kMaxSplitRows, (p.head_dim_v + 3) / 4 * 4 + 4};
  if (!p.is_ragged) {
    x.max_splits = plan_splits(p, tile, p.seqlen_q, p.seqlen_k).num_splits;
    return x;
  }
  // A ragged batch may hold any shorter sequence, and a shorter one may have more splits.
  if (p.strict_rows || group_size(p) > kMaxSplitRows) return x;
  const std::int64_t shortest = p.num_splits > 0 ? tile.keys : kMinSplitKeys;
  const std::int64_t by_size = (p.seqlen_k + shortest - 1) / shortest;
  const std::int64_t by_count = p.num_splits > 0 ? p.num_splits : kMaxSplits;
  x.max_splits = by_size < by_count ? by_size : by_count;
  if (x.max_splits < 1) x.max_splits = 1;
  return x;
}

}  // namespace headrace::cuda::sm80::fwd
