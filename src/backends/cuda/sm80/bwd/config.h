// Tiles, shared memory, workspace and work order of the sm80 backward. Host arithmetic, tested
// without a GPU.
#pragma once

#include "backends/cuda/common/padded_rows.h"
#include "backends/cuda/sm80/config.h"

namespace headrace::cuda::sm80::bwd {

// A CTA owns `keys` keys and loops over q-blocks of `rows` query rows of all heads of the group.
// Each of the five products is partitioned among the warps differently, so that a warp's part is
// nearly square. `keys` and `rows` fix the order of all sums.
struct Tile {
  int dim;  // head_dim and head_dim_v are zero-padded to it
  int rows, keys;
  int warps;
  int score_warps;  // S, dP: warps along the keys; the rest along the rows
  int key_warps;    // dK, dV: warps along the keys; the rest along the head dim
  int row_warps;    // dQ: warps along the rows; the rest along the head dim
  int q_stages;     // 2: the next Q is prefetched
  bool v_in_registers;
  bool p_ds_alias;  // P and dS use the same shared memory
  // mbarriers instead of __syncthreads: a warp waits only for the warps whose results it reads. Q
  // and dO have two stages.
  bool async_warps;
  bool dq_first;  // with async_warps: dQ before dK
  int min_ctas;   // CTAs per SM, for __launch_bounds__

  constexpr int threads() const { return 32 * warps; }
};

// The README derives these. They fit 99 KiB of shared memory.
constexpr Tile small_tile(bool is_f32, int dim, bool is_general) {
  if (is_f32) {
    if (dim == 256) return {256, 16, 32, 4, 4, 2, 1, 1, false, true, false, false, 1};
    return {dim, 32, 32, 4, 2, 2, 2, 1, false, false, false, false, dim == 64 ? 3 : 2};
  }
  if (dim == 64) return {64, 64, 64, 4, 2, 2, 2, 2, false, false, false, false, is_general ? 2 : 3};
  if (dim == 128)
    return {128, 64, 64, 4, 2, 2, 2, is_general ? 1 : 2, false, false, false, false, 2};
  return {256, 32, 64, 8, 8, 2, 1, 2, true, false, false, false, 1};
}
// For 16-bit formats, plain scores and head dims above 64, if the GPU has the shared memory.
constexpr Tile large_tile(int dim) {
  if (dim == 128) return {128, 64, 128, 8, 4, 4, 2, 2, false, false, true, false, 1};
  return {256, 64, 64, 8, 2, 2, 2, 2, false, false, true, true, 1};
}
template <bool kIsF32, int kDim, bool kIsGeneral, bool kIsLarge = false>
struct TileOf {  // as a type, for templates
  static constexpr Tile kTile = kIsLarge ? large_tile(kDim) : small_tile(kIsF32, kDim, kIsGeneral);
};

// Offsets in shared memory in bytes. With v_in_registers V is loaded through the stages of Q (and
// dO), and dV is stored through them.
struct SmemPlan {
  int row_bytes, score_bytes;  // of a row of Q, K, V, dO; of a row of P, dS
  int k, v, q, dout, p, ds;
  int lse_delta;   // [q_stages][lse, delta][rows]
  int score_rows;  // [rows] ScoreRow
  int work_tile;
  int barriers;  // mbarriers: full of two stages, scores full, scores empty
  int total;
};
inline constexpr int kWorkTileBytes = 128;
constexpr SmemPlan smem_plan(Tile tile, int element_bytes, bool is_general) {
  SmemPlan x{};
  x.row_bytes = tile.dim * element_bytes;
  x.score_bytes = tile.keys * element_bytes;
  const int key_bytes = tile.keys * x.row_bytes, query_bytes = tile.rows * x.row_bytes;
  x.k = 0;
  x.v = tile.v_in_registers ? key_bytes : x.k + key_bytes;
  x.q = tile.v_in_registers ? x.v : x.v + key_bytes;
  x.dout = x.q + tile.q_stages * query_bytes;
  x.p = x.dout + (tile.async_warps ? 2 : 1) * query_bytes;
  x.ds = x.p + (tile.p_ds_alias ? 0 : tile.rows * x.score_bytes);
  x.lse_delta = x.ds + tile.rows * x.score_bytes;
  x.score_rows = x.lse_delta + tile.q_stages * 2 * tile.rows * static_cast<int>(sizeof(float));
  x.work_tile = x.score_rows + (is_general ? tile.rows * kScoreRowBytes : 0);
  x.barriers = x.work_tile + kWorkTileBytes;
  x.total = x.barriers + (tile.async_warps ? 4 * 8 : 0);
  return x;
}

// Whether a problem takes the large tile. `smem_bytes`: shared memory per CTA of the GPU, 0:
// unknown.
constexpr bool takes_large_tile(const Problem& p, std::size_t smem_bytes) {
  if (dtype_of(p) == DType::f32 || needs_general_scores(p) || head_dim_bucket(p) == 64)
    return false;
  return static_cast<std::size_t>(smem_plan(large_tile(head_dim_bucket(p)), 2, false).total) <=
         smem_bytes;
}
constexpr Tile tile_of(const Problem& p, std::size_t smem_bytes) {
  if (takes_large_tile(p, smem_bytes)) return large_tile(head_dim_bucket(p));
  return small_tile(dtype_of(p) == DType::f32, head_dim_bucket(p), needs_general_scores(p));
}

// Limit of rows and keys of a sequence: the sum of two of them and a tile fits 32 bits.
inline constexpr std::int64_t kMaxCount = (std::int64_t{1} << 30) - (1 << 16);

// Causal mask and window of a sequence: row i sees keys [max(0, i + begin), min(seqlen_k, i +
// end)).
struct Band {
  int begin, end;
};
constexpr Band band_of(const Window& w, std::int64_t seqlen_q, std::int64_t seqlen_k) {
  const auto clamped = [](std::int64_t x) {
    return static_cast<int>(x < -kMaxCount ? -kMaxCount : x > kMaxCount ? kMaxCount : x);
  };
  const std::int64_t shift = diagonal_shift(w, seqlen_q, seqlen_k);
  const bool is_causal = has_causal(w);
  const bool has_right = is_causal || w.right >= 0;
  const std::int64_t right = is_causal ? 0 : clamped(w.right);
  return {clamped(w.left < 0 ? -kMaxCount : shift - clamped(w.left)),
          clamped(has_right ? shift + right + 1 : kMaxCount)};
}

// Rows [begin, end) see at least one key of a tile; rows [unmasked_begin, unmasked_end) see all of
// them.
struct QueryRange {
  int begin, end, unmasked_begin, unmasked_end;
};
constexpr QueryRange query_range(Band band, int first_key, int tile_keys, int seqlen_q,
                                 int seqlen_k) {
  const auto within = [seqlen_q](int x) { return x < 0 ? 0 : x > seqlen_q ? seqlen_q : x; };
  if (first_key >= seqlen_k) return {0, 0, 0, 0};
  const int end_key = first_key + tile_keys;
  QueryRange rows{within(first_key - band.end + 1), within(end_key - band.begin), 0, 0};
  if (end_key <= seqlen_k) {
    rows.unmasked_begin = within(end_key - band.end);
    rows.unmasked_end = within(first_key - band.begin + 1);
  }
  return rows;
}

// The last key tile that a row of a q-block sees. The distance from it is a CTA's turn to add to
// dQ.
constexpr int last_key_tile(Band band, Tile tile, int first_row, int seqlen_q, int seqlen_k) {
  const int end_row = first_row + tile.rows < seqlen_q ? first_row + tile.rows : seqlen_q;
  const int end_key = end_row - 1 + band.end < seqlen_k ? end_row - 1 + band.end : seqlen_k;
  return (end_key - 1) / tile.keys;
}

// Tiles of dbias; a broadcast axis, which is summed over, has one. In a ragged batch rows are
// packed, so each sequence has its own tiles.
struct DBiasTiles {
  std::int64_t batch, heads, rows, keys;
  constexpr std::int64_t count() const { return batch * heads * rows * keys; }
};
constexpr DBiasTiles dbias_tiles_of(const Problem& p, const ScoreOperand& dbias, Tile tile) {
  if (dbias.data == nullptr) return {0, 0, 0, 0};
  const bool by_sequence = (p.is_ragged ? dbias.stride_q : dbias.stride_batch) != 0;
  return {by_sequence ? p.batch : 1, dbias.stride_head != 0 ? p.num_heads : 1,
          dbias.stride_q != 0 ? ceil_div<std::int64_t>(p.seqlen_q, tile.rows) : 1,
          dbias.stride_k != 0 ? ceil_div<std::int64_t>(p.seqlen_k, tile.keys) : 1};
}

// Workspace: byte offsets from an address aligned to kWorkspaceAlignment. dq_accum is in blocks of
// 8 rows x 16 columns. dq_semaphores (deterministic only) count, per q-block of a head and per
// warp, the key tiles that have been added; the last word is the dynamic tile counter.
inline constexpr std::size_t kWorkspaceAlignment = 128;
struct WorkspacePlan {
  std::int64_t dq_accum_cols;  // floats per row of dq_accum
  std::int64_t num_dq_semaphores;
  std::size_t delta, lse, dq_accum, dq_semaphores, total;
};
constexpr WorkspacePlan workspace_plan(const Problem& p, Tile tile) {
  WorkspacePlan x{};
  const auto rows = static_cast<std::size_t>(padded_elements(sizes_of(p)));
  x.dq_accum_cols = round_up<std::int64_t>(p.head_dim, 16);
  x.num_dq_semaphores =
      p.deterministic ? padded_elements(sizes_of(p)) / tile.rows * tile.warps + 1 : 0;
  x.delta = 0;
  x.lse = x.delta + rows * sizeof(float);
  x.dq_accum = x.lse + rows * sizeof(float);
  x.dq_semaphores = x.dq_accum + rows * static_cast<std::size_t>(x.dq_accum_cols) * sizeof(float);
  x.total = x.dq_semaphores + static_cast<std::size_t>(x.num_dq_semaphores) * sizeof(std::uint32_t);
  return x;
}

}  // namespace headrace::cuda::sm80::bwd
