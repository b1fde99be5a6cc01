// Tiles, shared memory, splits and workspace of the sm80 forward. Host arithmetic, tested without a
// GPU.
#pragma once

#include "backends/cuda/sm80/config.h"

namespace headrace::cuda::sm80::fwd {

// `keys` fixes the order of a row's sums, so it depends only on dtype, head dims and features.
struct Tile {
  int dim;         // head_dim and head_dim_v are zero-padded to it
  int warps;       // of a CTA
  int row_blocks;  // of 16 rows, per warp
  int keys;
  int stages;  // 1: K and V loads alternate; 2: K and V of the next k-block are prefetched
  bool q_in_registers;
  int min_ctas;  // CTAs per SM, for __launch_bounds__

  constexpr int rows() const { return 16 * row_blocks * warps; }
  constexpr int threads() const { return 32 * warps; }
};

inline constexpr int kMaxWarps = 8;
// The README derives these. General scores need additional registers.
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
// For float, plain scores and head dims above 128, if the GPU has the shared memory: each read of K
// and V from shared memory serves twice as many rows.
inline constexpr Tile kLargeTile = {256, 8, 1, 32, 1, false, 1};

template <bool kIsF32, int kDim, bool kIsGeneral, bool kIsLarge = false>
struct TileOf {  // as a type, for templates
  static constexpr Tile kTile = kIsLarge ? kLargeTile : tile_of(kIsF32, kDim, kIsGeneral);
};

// Rows and keys of a sequence are counted in 32 bits, plus one tile.
inline constexpr std::int64_t kMaxCount = (std::int64_t{1} << 31) - (1 << 16);

// Offsets in shared memory in bytes. The swizzle needs tiles aligned to the length of a row.
struct SmemPlan {
  int tile_bytes;  // of a stage of K or V
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

// Whether a problem takes the large tile. `smem_bytes`: shared memory per CTA of the GPU, 0:
// unknown.
constexpr bool takes_large_tile(const Problem& p, std::size_t smem_bytes) {
  return dtype_of(p) == DType::f32 && head_dim_bucket(p) == kLargeTile.dim &&
         !needs_general_scores(p) &&
         static_cast<std::size_t>(smem_plan(kLargeTile, 4, false).total) <= smem_bytes;
}
constexpr Tile tile_of(const Problem& p, std::size_t smem_bytes) {
  if (takes_large_tile(p, smem_bytes)) return kLargeTile;
  return tile_of(dtype_of(p) == DType::f32, head_dim_bucket(p), needs_general_scores(p));
}

// Split KV is used up to this many rows (queries x heads of a group).
inline constexpr std::int64_t kMaxSplitRows = 64;
inline constexpr std::int64_t kMinSplitKeys = 256;
inline constexpr std::int64_t kMaxSplits = 64;

// What the splits of a sequence depend on beside its lengths.
struct SplitRule {
  std::int64_t group;  // group_size(problem)
  std::int32_t strict_rows, num_splits;
};
constexpr SplitRule split_rule(const Problem& p) {
  return {group_size(p), p.strict_rows, p.num_splits};
}

// Splits of one sequence. A function of its own lengths, the head dims and the options, so that a
// row has the same bits in every batch.
struct SplitPlan {
  std::int64_t num_splits, split_keys;
};
constexpr SplitPlan plan_splits(const SplitRule& rule, Tile tile, std::int64_t seqlen_q,
                                std::int64_t seqlen_k) {
  const auto largest = [](std::int64_t a, std::int64_t b) { return a > b ? a : b; };
  const std::int64_t keys = largest(seqlen_k, 1);
  if (rule.strict_rows || seqlen_q * rule.group > kMaxSplitRows) return {1, keys};
  std::int64_t split = largest(kMinSplitKeys, (keys + kMaxSplits - 1) / kMaxSplits);
  if (rule.num_splits > 0) split = (keys + rule.num_splits - 1) / rule.num_splits;
  split = (split + tile.keys - 1) / tile.keys * tile.keys;
  return {(keys + split - 1) / split, split};
}

// Layout of the partial results of splits: [batch * num_kv_heads][splits][rows][row_floats]. A row
// is followed by its row_max_ref, its sum and its largest score.
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
  if (!has_device_lengths(p)) {
    x.max_splits = plan_splits(split_rule(p), tile, p.seqlen_q, p.seqlen_k).num_splits;
    return x;
  }
  // A batch of other lengths may hold any shorter sequence, which may have more splits.
  if (p.strict_rows || group_size(p) > kMaxSplitRows) return x;
  const std::int64_t shortest = p.num_splits > 0 ? tile.keys : kMinSplitKeys;
  const std::int64_t by_size = (p.seqlen_k + shortest - 1) / shortest;
  const std::int64_t by_count = p.num_splits > 0 ? p.num_splits : kMaxSplits;
  x.max_splits = by_size < by_count ? by_size : by_count;
  if (x.max_splits < 1) x.max_splits = 1;
  return x;
}

}  // namespace headrace::cuda::sm80::fwd
