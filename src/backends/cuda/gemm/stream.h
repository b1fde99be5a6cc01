// Products of up to 64 tokens on Hopper: the weights stream through shared memory once.
#pragma once

#include <algorithm>

#include "backends/cuda/gemm/params.h"

namespace headrace::cuda::gemm {

// What a CTA computes at a time, and the ring of stages that it loads.
struct StreamShape {
  int tile_rows;   // of weights: the height of the instruction
  int atoms;       // swizzle atoms of a stage, 64 columns each
  int most_tiles;  // that are computed at a time, each by a unit
  int unit_warps;
  int ring_bytes;
  int ctas_per_sm;
};
// Up to 16 tokens: a warp a tile, mma.sync. Two CTAs fit a multiprocessor, so that the next product
// loads its first stages while this one ends. With four tiles the ring has at least five stages;
// with seven it had three, of which a warp holds one, and large matrices came at 92 % of the
// bandwidth.
inline constexpr StreamShape kNarrowStream = {16, 2, 4, 1, 104 * 1024, 2};
// Up to 64 tokens: a warpgroup a tile, wgmma.
inline constexpr StreamShape kWideStream = {64, 1, 4, 4, 200 * 1024, 1};
inline constexpr int kNarrowTokens = 16, kWideTokens = 64;
inline constexpr int kStreamMaxStages = 16;

constexpr int stream_columns(const StreamShape& s) { return s.atoms * kSwizzleAtomCols; }
constexpr int stream_row_bytes(const StreamShape& s) { return s.atoms * kSwizzleRowBytes; }

// The work of a launch. CTA i has tiles [i * count / ctas, (i + 1) * count / ctas), `group` of them
// at a time.
struct StreamPlan {
  int num_ctas, group;
  int stage_bytes, num_stages;
  int tokens;           // of a stage
  int num_stage_loads;  // stages that a row of weights has

  static constexpr StreamPlan of(const StreamShape& shape, int num_tiles, std::int64_t columns,
                                 int tokens, int num_units) {
    StreamPlan s{};
    s.num_ctas = std::clamp(num_tiles, 1, std::max(num_units, 1) * shape.ctas_per_sm);
    const int most = (num_tiles + s.num_ctas - 1) / s.num_ctas;  // tiles of a CTA
    const int rounds = (most + shape.most_tiles - 1) / shape.most_tiles;
    s.group = (most + rounds - 1) / rounds;
    s.tokens = tokens;
    s.stage_bytes = (s.group * shape.tile_rows + tokens) * stream_row_bytes(shape);
    s.num_stages = std::min(kStreamMaxStages, shape.ring_bytes / s.stage_bytes);
    s.num_stage_loads =
        static_cast<int>((columns + stream_columns(shape) - 1) / stream_columns(shape));
    return s;
  }
};

struct StreamParams {
  RowTiles tiles;
  Output out;
  StreamPlan plan;
  std::int32_t num_tokens;
};

struct StreamCall {
  const StreamParams& params;
  const Maps& maps;
  DType dtype;
  Stream stream;
};
// plan.tokens: 8 or 16.
Status launch_narrow_stream(const StreamCall& call);
// plan.tokens: 64.
Status launch_wide_stream(const StreamCall& call);

}  // namespace headrace::cuda::gemm
