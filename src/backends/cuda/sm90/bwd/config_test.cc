// Shared memory, registers and the order of dQ of every tile of the Hopper backward kernels. Needs
// no GPU.
#include "backends/cuda/sm90/bwd/config.h"

#include <gtest/gtest.h>

#include <vector>

#include "backends/cuda/common/bwd_preprocess.h"

namespace headrace::cuda::sm90::bwd {
namespace {

constexpr Tile kAll[] = {kTile64, kTile128, kTile192v128, kTile192, kTile256};

TEST(HopperBackwardTiles, FitSharedMemory) {
  for (const Tile& tile : kAll) EXPECT_LE(smem_bytes(tile), kSmemLimitSm90) << tile.head_dim;
}

// A swizzle pattern begins at a multiple of 1024 bytes, and so must every swizzle atom.
TEST(HopperBackwardTiles, AtomsBeginWhereTheSwizzleDoes) {
  for (const Tile& tile : kAll) {
    const SmemPlan s = smem_plan(tile);
    for (const int offset :
         {s.offset_k, s.offset_v, s.offset_q, s.offset_dout, s.offset_ds, s.q, s.dout, s.ds,
          tile.keys * kSwizzleRowBytes, tile.queries * kSwizzleRowBytes})
      EXPECT_EQ(offset % 1024, 0) << tile.head_dim;
    for (const int offset : {s.offset_p, s.offset_lse, s.offset_d, s.stat})
      EXPECT_EQ(offset % 16, 0) << tile.head_dim;
    EXPECT_EQ(s.offset_barriers % 8, 0) << tile.head_dim;
  }
}

TEST(HopperBackwardTiles, RegionsFollowEachOther) {
  for (const Tile& tile : kAll) {
    const SmemPlan s = smem_plan(tile);
    EXPECT_EQ(s.offset_k + s.k, s.offset_v);
    EXPECT_EQ(s.offset_v + s.v, s.offset_q);
    EXPECT_EQ(s.offset_q + stages_q(tile) * s.q, s.offset_dout);
    EXPECT_EQ(s.offset_dout + stages_dout(tile) * s.dout, s.offset_ds);
    EXPECT_EQ(s.offset_ds + kStagesDs * s.ds, s.offset_p);
    EXPECT_EQ(s.offset_p + kStagesDs * s.p, s.offset_lse);
    EXPECT_EQ(s.offset_lse + stages_q(tile) * s.stat, s.offset_d);
    EXPECT_EQ(s.offset_d + stages_dout(tile) * s.stat, s.offset_barriers);
    EXPECT_EQ(s.offset_barriers + 8 * barrier_plan(tile).count, s.bytes);
  }
}

// A query block lies within the padding of a sequence, so it never spans two.
TEST(HopperBackwardTiles, BlocksOfQueriesDivideThePaddingOfRows) {
  for (const Tile& tile : kAll) EXPECT_EQ(kRowPadding % tile.queries, 0) << tile.head_dim;
}

TEST(HopperBackwardTiles, EveryElementOfDqHasOnePlace) {
  for (const Tile& tile : kAll) {
    std::vector<int> seen(static_cast<std::size_t>(tile.queries * tile.head_dim));
    for (int part = 0; part < dq_parts(tile); ++part)
      for (int thread = 0; thread < 128; ++thread)
        for (int i = 0; i < 4 * kDqGroups; ++i) {
          const DqPlace place = dq_place(tile, part, thread);
          const int row = place.row + i % 4 / 2 * 8;
          const int column = 8 * (place.chunk + i / 4) + 2 * (thread % 4) + i % 2;
          ASSERT_LT(row, tile.queries);
          ASSERT_LT(column, tile.head_dim);
          ++seen[static_cast<std::size_t>(row * tile.head_dim + column)];
        }
    EXPECT_EQ(seen, std::vector<int>(seen.size(), 1)) << tile.head_dim;
  }
}

}  // namespace
}  // namespace headrace::cuda::sm90::bwd
