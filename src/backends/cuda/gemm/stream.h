// Products of up to 16 tokens on Hopper: the weights stream through shared memory once.
#pragma once

#include <algorithm>

#include "backends/cuda/elementwise/kv_append.h"
#include "backends/cuda/gemm/params.h"
#include "base/math.h"

namespace headrace::cuda::gemm {

inline constexpr int kStreamTileRows = 16;  // of weights, by a warp: the most
inline constexpr int kStreamLeastTileRows = 4;
inline constexpr int kStreamAtomBytes = kStreamTileRows * kSwizzleRowBytes;  // of a tile
// Of a stage, 64 columns each. A producer takes about 170 clocks for a stage and 55 for a box of an
// atom: with two atoms it was what products of few rows waited for.
inline constexpr int kStreamAtoms = 4;
inline constexpr int kStreamColumns = kStreamAtoms * kSwizzleAtomCols;
inline constexpr int kStreamRowBytes = kStreamAtoms * kSwizzleRowBytes;
inline constexpr int kStreamTileBytes = kStreamAtoms * kStreamAtomBytes;
inline constexpr int kStreamWarps = 4;  // that multiply: one for each chain of a tile
// The ring and the rows of x. Two CTAs fit a multiprocessor, so that the next product loads its
// first stages while this one ends.
inline constexpr int kStreamBytes = 108 * 1024;
inline constexpr int kStreamCtasPerSm = 2;
inline constexpr int kStreamMaxStages = 16;

// Rows of a tile. Those of CTAs on one multiprocessor take the time of their rows together, so a
// product of few rows has tiles that divide it more evenly: 1536 rows are 96 tiles of 16 rows, or
// 128 of 12 for 132 multiprocessors. 16 rows where others save less than a tenth.
constexpr int stream_tile_rows(const Product& p, int num_units) {
  if (p.has_swiglu || p.append != nullptr) return kStreamTileRows;
  const auto most = [&](int rows) {
    return ceil_div(RowTiles::of(p, rows).count, std::max(num_units, 1)) * rows;
  };
  int best = kStreamTileRows;
  for (int rows = kStreamTileRows - 1; rows >= kStreamLeastTileRows; --rows)
    if (most(rows) < most(best)) best = rows;
  return 10 * most(best) <= 9 * most(kStreamTileRows) ? best : kStreamTileRows;
}

// A tile of two chains has a warp for each. The work of a launch: CTA i has tiles [i * count /
// ctas, (i + 1) * count / ctas), `group` of them at a time.
struct StreamPlan {
  int tile_rows;  // the rows behind them, up to kStreamTileRows, are not loaded
  int num_ctas, group;
  bool has_rows;  // of x, in shared memory: x is not in the stages
  int ring_bytes, stage_bytes, num_stages;
  int num_stage_loads;  // stages that a row of weights has
  int x_box_atoms;      // that TMA loads of x at a time: all of a stage, or one

  static constexpr StreamPlan of(int tile_rows, int num_tiles, std::int64_t columns, int num_tokens,
                                 int num_units, int num_chains) {
    StreamPlan s{};
    s.tile_rows = tile_rows;
    s.num_ctas = std::clamp(num_tiles, 1, std::max(num_units, 1) * kStreamCtasPerSm);
    s.has_rows = has_few_rows(num_tokens, columns);
    s.ring_bytes = kStreamBytes - (s.has_rows ? kRowBytes : 0);
    const int x_bytes = round_up(s.has_rows ? 0 : num_tokens * kStreamRowBytes, 1024);
    // As many tiles at a time as there are warps for, so that x is read seldom, in three stages.
    const int fit = (s.ring_bytes / 3 - x_bytes) / kStreamTileBytes;
    const int most = ceil_div(num_tiles, s.num_ctas);  // tiles of a CTA
    s.group = ceil_div(most, ceil_div(most, std::min(fit, kStreamWarps / num_chains)));
    s.stage_bytes = s.group * kStreamTileBytes + x_bytes;
    s.num_stages = std::min(kStreamMaxStages, s.ring_bytes / s.stage_bytes);
    s.num_stage_loads = static_cast<int>(ceil_div<std::int64_t>(columns, kStreamColumns));
    // Atoms are an axis of the tensor where they are whole.
    s.x_box_atoms = columns % kSwizzleAtomCols == 0 ? kStreamAtoms : 1;
    return s;
  }
};

struct StreamParams {
  RowTiles tiles;
  Output out;
  StreamPlan plan;
  std::int32_t num_tokens, num_chains;
  // With rows of x alone, when maps.x is not used.
  InputNorm norm;
  const void* x;
  std::int64_t x_stride;
  std::int32_t columns, row_pitch;
  // RoPE and append in place of out: the heads of the three matrices. q, k and v are not used.
  std::int32_t has_append;
  append::VectorParams append;
};

struct StreamCall {
  const StreamParams& params;
  const Maps& maps;
  DType dtype;
  Stream stream;
};
Status launch_stream(const StreamCall& call);

}  // namespace headrace::cuda::gemm
