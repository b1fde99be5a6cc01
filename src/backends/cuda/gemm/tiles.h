// Products of many tokens on Hopper: wgmma on tiles of a cluster of two CTAs.
#pragma once

#include <algorithm>
#include <iterator>

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
  friend constexpr bool operator==(const TileShape&, const TileShape&) = default;
};
inline constexpr TileShape kTileShapes[] = {{256, true}, {128, false}, {128, true}, {64, false}};

struct TileParams {
  RowTiles tiles;
  Output out;
  // Token tiles are those of a cluster.
  std::int32_t num_tokens, num_token_tiles, token_tiles_at_once, num_stage_loads;

  static constexpr TileParams of(const Product& p, TileShape shape) {
    const int tokens = shape.cluster_tokens();
    return {
        .tiles = RowTiles::of(p, shape.rows),
        .out = Output::of(p),
        .num_tokens = static_cast<std::int32_t>(p.num_tokens),
        .num_token_tiles = static_cast<std::int32_t>(ceil_div<std::int64_t>(p.num_tokens, tokens)),
        .token_tiles_at_once = kTokensAtOnce / tokens,
        .num_stage_loads =
            static_cast<std::int32_t>(ceil_div<std::int64_t>(p.columns, kTileColumns))};
  }
  constexpr std::int64_t count() const { return std::int64_t{tiles.count} * num_token_tiles; }
};

// The shape with the least predicted time: the rounds of its tiles over all clusters, times the
// size of a tile, divided by the rate of the shape relative to the first. A single round of
// ping-pong has work for one warpgroup and takes kAlone times as long. Both constants lose least
// over 63 products on an H200 (README.md).
constexpr TileShape choose_tile_shape(const Product& p, int num_units) {
  constexpr double kRates[] = {1, 0.9, 0.85, 0.6};
  constexpr double kAlone = 1.15;
  const std::int64_t clusters = std::max(num_units / kTileCluster, 1);
  TileShape best{};
  double least = 0;
  for (std::size_t i = 0; i < std::size(kTileShapes); ++i) {
    const TileShape shape = kTileShapes[i];
    const std::int64_t rounds = ceil_div(TileParams::of(p, shape).count(), clusters);
    const double time = static_cast<double>(rounds * shape.rows * shape.cluster_tokens()) /
                        kRates[i] * (shape.is_ping_pong && rounds == 1 ? kAlone : 1);
    if (i > 0 && time >= least) continue;
    least = time;
    best = shape;
  }
  return best;
}

struct TileCall {
  const TileParams& params;
  const Maps& maps;  // boxes of shape.tokens(), and of half of the rows of a tile
  DType dtype;
  TileShape shape;
  int num_units;
  Stream stream;
};
Status launch_tiles(const TileCall& call);

}  // namespace headrace::cuda::gemm
