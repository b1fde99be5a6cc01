#include "backends/cuda/gemm/tiles.h"

#include <gtest/gtest.h>

namespace headrace::cuda::gemm {
namespace {

TileShape shape_of(std::span<const Matrix> matrices, std::int64_t num_tokens,
                   bool has_swiglu = false) {
  Product p{};
  p.matrices = matrices;
  p.columns = 4096;
  p.num_tokens = num_tokens;
  p.has_swiglu = has_swiglu;
  return choose_tile_shape(p, 132);
}

TEST(GemmTileShape, LargeTilesInTurnsForManyTokens) {
  constexpr TileShape kPingPong256{256, true};
  const Matrix gate_up[] = {{nullptr, 14336}, {nullptr, 14336}};
  for (const std::int64_t tokens : {512, 1024, 8192, 100000})
    EXPECT_EQ(shape_of(gate_up, tokens, true), kPingPong256) << tokens;
  const Matrix qkv[] = {{nullptr, 4096}, {nullptr, 1024}, {nullptr, 1024}};
  EXPECT_EQ(shape_of(qkv, 8192), kPingPong256);
}

TEST(GemmTileShape, SmallTilesWhereLargeOnesLeaveClustersIdle) {
  const Matrix o{nullptr, 4096};
  // 32 tiles of 256 rows for 66 clusters, or 64 of 128.
  EXPECT_EQ(shape_of({&o, 1}, 256), (TileShape{128, true}));
  const Matrix qkv[] = {{nullptr, 1536}, {nullptr, 256}, {nullptr, 256}};
  // 64 tiles: one warpgroup multiplies 256 rows, or two multiply 128.
  EXPECT_EQ(shape_of(qkv, 1024), (TileShape{128, false}));
}

TEST(GemmTileShape, EveryTileOfAProductIsCounted) {
  const Matrix matrices[] = {{nullptr, 257}, {nullptr, 1}};
  Product p{};
  p.matrices = matrices;
  p.columns = 72;
  p.num_tokens = 257;
  const auto params = TileParams::of(p, {256, true});
  EXPECT_EQ(params.tiles.count, 3);
  EXPECT_EQ(params.num_token_tiles, 3);
  EXPECT_EQ(params.num_stage_loads, 2);
  EXPECT_EQ(params.count(), 9);
}

}  // namespace
}  // namespace headrace::cuda::gemm
