#include "backends/cuda/gemm/tiles.h"

#include <gtest/gtest.h>

#include <vector>

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
    EXPECT_EQ(shape_of(kGateUp, tokens, true), (TileShape{256, false})) << tokens;
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

TEST(GemmChains, AreTwoForFewRowsOfAllMatrices) {
  const auto chains_of = [](std::vector<std::int64_t> rows, std::int64_t columns,
                            bool has_swiglu = false) {
    std::vector<Matrix> matrices;
    for (const std::int64_t r : rows) matrices.push_back({nullptr, r});
    Product p{};
    p.matrices = matrices;
    p.columns = columns;
    p.has_swiglu = has_swiglu;
    const int count = num_chains(p);
    for (const std::int64_t tokens : {1, 16, 17, 128, 129, 100000}) {
      p.num_tokens = tokens;
      EXPECT_EQ(num_chains(p), count) << tokens << " tokens";
    }
    return count;
  };
  for (const std::int64_t columns : {8, 576, 8960}) {
    EXPECT_EQ(chains_of({1}, columns), 2);
    EXPECT_EQ(chains_of({1536}, columns), 2);
    EXPECT_EQ(chains_of({2399}, columns), 2);
    EXPECT_EQ(chains_of({2400}, columns), 1);
    EXPECT_EQ(chains_of({1536, 256, 256}, columns), 2);
    EXPECT_EQ(chains_of({2048, 256, 96}, columns), 1);
    EXPECT_EQ(chains_of({1199, 1199}, columns, true), 2);
    EXPECT_EQ(chains_of({1200, 1200}, columns, true), 1);
  }
}

// A thread has 240 registers, and needs some beside its accumulators.
TEST(GemmChains, OfAProductFitTheChosenShape) {
  for (const std::int64_t rows : {1, 576, 1536, 2399, 2400, 40000}) {
    const Matrix matrix{nullptr, rows};
    for (const std::int64_t tokens : {129, 256, 257, 1024, 8192, 100000})
      for (const int num_units : {1, 16, 78, 132}) {
        Product p{};
        p.matrices = {&matrix, 1};
        p.columns = 8960;
        p.num_tokens = tokens;
        const TileShape shape = choose_tile_shape(p, num_units);
        EXPECT_LE(num_chains(p), shape.most_chains()) << rows << " rows, " << tokens << " tokens";
        EXPECT_LE(num_chains(p) * shape.rows / 2, 192);
        EXPECT_EQ(TileParams::of(p, shape).num_chains, num_chains(p));
      }
  }
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
