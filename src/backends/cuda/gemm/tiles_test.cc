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

constexpr Matrix kGateUp[] = {{nullptr, 14336}, {nullptr, 14336}};
constexpr Matrix kQkv[] = {{nullptr, 4096}, {nullptr, 1024}, {nullptr, 1024}};
constexpr Matrix kO{nullptr, 4096};

TEST(GemmTileShape, LargeTilesForManyTokens) {
  for (const std::int64_t tokens : {8192, 100000}) {
    EXPECT_EQ(shape_of(kGateUp, tokens, true), (TileShape{256, true})) << tokens;
    EXPECT_EQ(shape_of(kQkv, tokens), (TileShape{256, false})) << tokens;
  }
}

TEST(GemmTileShape, TilesOfWhichEveryClusterHasAsManyAsTheOthers) {
  // 128 tiles of 112 rows of gate and as many of up for 66 clusters, or 112 of 128.
  EXPECT_EQ(shape_of(kGateUp, 256, true), (TileShape{224, false}));
  // 64 tiles, of 64 rows for 256 tokens.
  EXPECT_EQ(shape_of({&kO, 1}, 256), (TileShape{64, false}));
  // 64 of 256 rows.
  EXPECT_EQ(shape_of({&kO, 1}, 1024), (TileShape{256, false}));
  // 65 of 96 rows; 96 of 64 are two rounds.
  EXPECT_EQ(shape_of(kQkv, 256), (TileShape{96, false}));
}

TEST(GemmTileShape, TheLastTokensHaveABoxOfTheirOwn) {
  const auto tail_of = [](std::int64_t tokens, bool is_ping_pong) {
    Product p{};
    p.matrices = {&kO, 1};
    p.columns = 4096;
    p.num_tokens = tokens;
    return TileParams::of(p, {96, is_ping_pong}).tail_tokens;
  };
  EXPECT_EQ(tail_of(256, false), 0);
  EXPECT_EQ(tail_of(257, false), 8);
  EXPECT_EQ(tail_of(192, false), 64);
  EXPECT_EQ(tail_of(192, true), 0);
  EXPECT_EQ(tail_of(250, false), 0);  // 122 of 128
  EXPECT_EQ(tail_of(247, false), 120);
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
