// Products of many tokens on Hopper: wgmma on tiles of 128 tokens.
#pragma once

#include "backends/cuda/gemm/params.h"

namespace headrace::cuda::gemm {

inline constexpr int kTileTokens = 128;
inline constexpr int kTileColumns = kSwizzleAtomCols;  // of a stage
// Tiles of this many tokens run side by side: their x and the weights of as many CTAs fit L2.
inline constexpr int kTokenTilesAtOnce = 16;

struct TileParams {
  RowTiles tiles;
  Output out;
  std::int32_t num_tokens, num_token_tiles, num_stage_loads;
};

struct TileCall {
  const TileParams& params;
  const Maps& maps;
  DType dtype;
  int tile_rows;  // 64, 128 or 256
  int num_units;
  Stream stream;
};
Status launch_tiles(const TileCall& call);

}  // namespace headrace::cuda::gemm
