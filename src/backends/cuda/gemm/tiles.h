// Products of many tokens on Hopper: wgmma on tiles of a cluster of two CTAs.
#pragma once

#include <algorithm>

#include "backends/cuda/gemm/params.h"
#include "base/math.h"

namespace headrace::cuda::gemm {

inline constexpr int kTileColumns = kSwizzleAtomCols;  // of a stage
inline constexpr int kTileCluster = 2;                 // CTAs
// Tokens whose tiles are computed side by side: their x and the weights of as many CTAs fit L2.
inline constexpr int kTokensAtOnce = 2048;

// What a CTA computes at a time. Ping-pong: each of its two warpgroups multiplies a tile of 64
// tokens of its own, in turns, and writes it while the other multiplies. Cooperative: both
// multiply one tile, 64 tokens each, and nothing is multiplied while they write it.
struct TileShape {
  int rows;  // of weights
  bool is_ping_pong;

  constexpr int tokens() const { return is_ping_pong ? 64 : 128; }
  constexpr int cluster_tokens() const { return kTileCluster * tokens(); }
  // A thread has rows / 2 accumulators for each, of 240 registers.
  constexpr int most_chains() const { return rows <= 192 ? 2 : 1; }
  friend constexpr bool operator==(const TileShape&, const TileShape&) = default;
};
inline constexpr TileShape kTileShapes[] = {{256, true},  {96, true},   {256, false}, {224, false},
                                            {192, false}, {128, false}, {96, false},  {64, false}};

struct TileParams {
  RowTiles tiles;
  Output out;
  // Token tiles are those of a cluster.
  std::int32_t num_tokens, num_token_tiles, token_tiles_at_once, num_stage_loads, num_chains;
  // In the box of the last tokens; 0: they fill a whole one. Rows of a box that do not exist take
  // time: with whole boxes 136 tokens took longer than 256.
  std::int32_t tail_tokens;

  static constexpr TileParams of(const Product& p, TileShape shape) {
    const int tokens = shape.cluster_tokens();
    return {
        .tiles = RowTiles::of(p, shape.rows),
        .out = Output::of(p),
        .num_tokens = static_cast<std::int32_t>(p.num_tokens),
        .num_token_tiles = static_cast<std::int32_t>(ceil_div<std::int64_t>(p.num_tokens, tokens)),
        .token_tiles_at_once = kTokensAtOnce / tokens,
        .num_stage_loads =
            static_cast<std::int32_t>(ceil_div<std::int64_t>(p.columns, kTileColumns)),
        .num_chains = cuda::num_chains(p),
        .tail_tokens = static_cast<std::int32_t>(
            round_up<std::int64_t>(p.num_tokens % shape.tokens(), 8) % shape.tokens())};
  }
  constexpr std::int64_t count() const { return std::int64_t{tiles.count} * num_token_tiles; }
};

// Of the shapes for num_chains() the one with the least predicted time: the rounds of its tiles
// over all clusters, times what a tile costs a CTA: its rows for each 64 tokens, and kStageRows, as
// a stage takes time whatever its size; kTogether for tiles of both warpgroups, which load less.
// SwiGLU takes them as long again, as nothing is multiplied beside it. The constants lose least
// over 112 products on an H200 and on an H100 (README.md).
constexpr TileShape choose_tile_shape(const Product& p, int num_units) {
  constexpr double kStageRows = 45, kTogether = 0.88;
  const double together = p.has_swiglu ? 1 : kTogether;
  const std::int64_t clusters = std::max(num_units / kTileCluster, 1);
  const auto time_of = [&](const TileShape& shape) {
    const std::int64_t rounds = ceil_div(TileParams::of(p, shape).count(), clusters);
    return static_cast<double>(rounds) * (shape.rows * shape.tokens() / 64 + kStageRows) *
           (shape.is_ping_pong ? 1 : together);
  };
  const TileShape* best = nullptr;
  for (const TileShape& shape : kTileShapes)
    if (num_chains(p) <= shape.most_chains() &&
        (best == nullptr || time_of(shape) < time_of(*best)))
      best = &shape;
  return *best;
}

struct TileCall {
  const TileParams& params;
  const Maps& maps;  // boxes of shape.tokens() and params.tail_tokens, and of half of the rows
  TileShape shape;
  int num_units;
  Stream stream;
};
Status launch_tiles_bf16(const TileCall& call);
Status launch_tiles_f16(const TileCall& call);

}  // namespace headrace::cuda::gemm
