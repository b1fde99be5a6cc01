// Tiles, tasks and scratch memory of the backward: pure arithmetic, testable without running
// kernels.
#pragma once

#include "backends/cpu/attention/flash/config.h"
#include "core/args.h"
#include "core/tuning.h"

namespace headrace::cpu::flash {

// Rows and keys per tile, for every problem: they fix the order of all sums, which may depend only
// on the sequence itself. Multiples of every register tile in both directions (dV and dK use keys
// as rows); keys also a multiple of 32 for dropout. P and dS, 2 * 48 * 96 * 4 = 36 KB, nearly fit
// the L1 cache.
inline constexpr int64_t kBackwardRows = 48;
inline constexpr int64_t kBackwardKeys = 96;
// Rows of a task that only computes dQ; they share the packed K and V.
inline constexpr int64_t kBackwardTaskRows = 4 * kBackwardRows;
// Largest dQ buffer of a worker, for a whole sequence and KV head.
inline constexpr int64_t kMaxDqBytes = int64_t{64} << 20;

// Fused: one task per (batch entry, KV head) computes the five matmuls S, dP, dV, dK, dQ of each
// tile. Separate, if fused tasks would leave threads idle: tasks of one key tile (dK, dV) and tasks
// of some row tiles (dQ) both compute S and dP, seven matmuls. The sums run in the same order, so
// the bits are equal.
enum class BackwardPath { fused, separate };

// Scratch of one worker, in floats or 32-bit units, each part on its own cache lines. If a unit is
// a pair, Q and dO are stored twice: as pairs of columns for S and dP, and as pairs of rows.
struct BackwardScratch {
  int64_t q, dout, k_panels, v_panels, k, dk, dv, s, dp, keep, slope, dq, dbias;  // offsets
  int64_t q_steps, dout_steps, ds_rows;  // only if units are pairs
  int64_t k_stride, v_stride;            // floats or units per row of Q, K, dQ, dK; of dO, dV
  int64_t k_panel, v_panel;              // floats between panels
  int64_t total;
};

struct BackwardLayout {
  BackwardPath path;
  int64_t key_tiles, row_groups;  // for the longest sequence
  BackwardScratch scratch;
};

// The row stride is an odd number of cache lines, so that a tile's column spreads over all sets.
inline int64_t backward_stride(int64_t dim, int64_t cols) {
  const int64_t line = 16;
  const int64_t floats = round_up(round_up(dim, cols), line);
  return floats / line % 2 == 0 ? floats + line : floats;
}

inline BackwardScratch backward_scratch(const Problem& p, const IsaShape& isa, int64_t dq_rows) {
  const int64_t line = 16, rows = kBackwardRows, keys = kBackwardKeys, cols = isa.tile_cols;
  BackwardScratch x{};
  x.k_stride = backward_stride(p.head_dim, cols);
  x.v_stride = backward_stride(p.head_dim_v, cols);
  x.k_panel = round_up(ceil_div<int64_t>(p.head_dim, isa.pair) * cols, line) + line;
  x.v_panel = round_up(ceil_div<int64_t>(p.head_dim_v, isa.pair) * cols, line) + line;
  const auto part = [&x](int64_t floats) {
    const int64_t offset = x.total;
    x.total += floats;
    return offset;
  };
  x.q = part(rows * x.k_stride);
  x.dout = part(rows * x.v_stride);
  x.k_panels = part(keys / cols * x.k_panel);
  x.v_panels = part(keys / cols * x.v_panel);
  x.k = part(keys / isa.pair * x.k_stride);
  x.dk = part(keys * x.k_stride);
  x.dv = part(keys * x.v_stride);
  x.s = part(rows * keys);
  x.dp = part(rows * keys);
  x.keep = part(keys);
  x.slope = part(keys);
  x.dq = part(dq_rows * x.k_stride);
  x.dbias = part(p.has_dbias ? rows * keys : 0);
  const bool has_pairs = isa.pair == 2;
  x.q_steps = part(has_pairs ? rows / 2 * x.k_stride : 0);
  x.dout_steps = part(has_pairs ? rows / 2 * x.v_stride : 0);
  x.ds_rows = part(has_pairs ? rows * keys / 2 : 0);
  return x;
}

inline bool fits_fused(const Problem& p, const IsaShape& isa) {
  const int64_t rows = round_up(p.seqlen_q * group_size(p), kBackwardRows);
  return saturating_product({rows, backward_stride(p.head_dim, isa.tile_cols), sizeof(float)}) <=
         kMaxDqBytes;
}

// `backward_tasks`: that of a TuningConfig.
inline BackwardLayout backward_layout(const Problem& p, const IsaShape& isa, int num_threads,
                                      int32_t backward_tasks = 0) {
  const int64_t rows = round_up(p.seqlen_q * group_size(p), kBackwardRows);
  const int64_t heads = p.batch * p.num_kv_heads;
  // Every thread takes as long as the one with the most heads.
  const int64_t busy = round_up<int64_t>(heads, num_threads);
  const int32_t own = 5 * busy <= 7 * heads && fits_fused(p, isa) ? kFusedTasks : kSeparateTasks;
  const bool is_fused = chosen(backward_tasks, own) == kFusedTasks;
  return {is_fused ? BackwardPath::fused : BackwardPath::separate,
          ceil_div(p.seqlen_k, kBackwardKeys), ceil_div(rows, kBackwardTaskRows),
          backward_scratch(p, isa, is_fused ? rows : std::min(rows, kBackwardTaskRows))};
}

// Number of tasks per (batch entry, KV head).
inline int64_t backward_units(const BackwardLayout& layout) {
  return layout.path == BackwardPath::fused ? 1 : layout.key_tiles + layout.row_groups;
}

// Tasks of dbias: one per tile; a reduced axis has one tile.
struct DbiasTiles {
  int64_t batch, heads, rows, keys;
  int64_t count() const { return batch * heads * rows * keys; }
};
inline DbiasTiles dbias_tiles(const Problem& p, const ScoreOperand& dbias) {
  if (dbias.data == nullptr) return {0, 0, 0, 0};
  // In a ragged batch every sequence has its own rows of dbias.
  const bool by_sequence = p.is_ragged ? dbias.stride_q != 0 : dbias.stride_batch != 0;
  return {by_sequence ? p.batch : 1, dbias.stride_head != 0 ? p.num_heads : 1,
          dbias.stride_q != 0 ? ceil_div(p.seqlen_q, kBackwardRows) : 1,
          dbias.stride_k != 0 ? ceil_div(p.seqlen_k, kBackwardKeys) : 1};
}

}  // namespace headrace::cpu::flash
