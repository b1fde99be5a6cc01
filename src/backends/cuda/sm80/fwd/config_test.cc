#include "backends/cuda/sm80/fwd/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace headrace::cuda::sm80::fwd {
namespace {

Problem problem(std::int64_t seqlen_q, std::int64_t seqlen_k, std::int64_t group,
                std::int64_t head_dim) {
  Problem p{};
  p.batch = 1;
  p.seqlen_q = seqlen_q;
  p.seqlen_k = seqlen_k;
  p.num_heads = group;
  p.num_kv_heads = 1;
  p.head_dim = p.head_dim_v = head_dim;
  p.window_left = p.window_right = -1;
  p.softmax_scale = 1;
  p.bias_dtype = -1;
  return p;
}

TEST(Sm80Config, EveryVariantFitsInto99KiB) {
  for (const bool is_f32 : {false, true})
    for (const int dim : kHeadDims)
      for (const bool is_general : {false, true}) {
        const SmemPlan smem =
            smem_plan(tile_of(is_f32, dim, is_general), is_f32 ? 4 : 2, is_general);
        EXPECT_LE(smem.total, 99 * 1024) << is_f32 << ' ' << dim << ' ' << is_general;
      }
}

TEST(Sm80Config, LargeTileIsUsedForFloatIfItFits) {
  Problem p = problem(1, 1, 1, 256);
  p.dtype = static_cast<std::int32_t>(DType::f32);
  const auto bytes = static_cast<std::size_t>(smem_plan(kLargeTile, 4, false).total);
  EXPECT_LE(bytes, 227u * 1024);
  EXPECT_TRUE(takes_large_tile(p, bytes));
  EXPECT_FALSE(takes_large_tile(p, bytes - 1));
  EXPECT_FALSE(takes_large_tile(p, 0));
  p.softmax_scale = -1;
  EXPECT_FALSE(takes_large_tile(p, bytes));
  p = problem(1, 1, 1, 128);
  p.dtype = static_cast<std::int32_t>(DType::f32);
  EXPECT_FALSE(takes_large_tile(p, bytes));
  p = problem(1, 1, 1, 256);
  p.dtype = static_cast<std::int32_t>(DType::bf16);
  EXPECT_FALSE(takes_large_tile(p, bytes));
}

TEST(Sm80Config, WorkTilesAreTakenOnceAndTheLastHeadsAreInterleaved) {
  Problem p = problem(1, 1, 1, 64);
  p.causal = HEADRACE_CAUSAL_BOTTOM_RIGHT;
  for (const std::int64_t slots : {0, 1, 7, 132})
    for (const std::int64_t heads : {1, 5, 64})
      for (const std::int64_t tiles_per_head : {1, 4, 16}) {
        p.batch = heads;
        const WorkOrder order = work_order(p, tiles_per_head, slots);
        std::vector<int> taken(static_cast<std::size_t>(order.num_tiles()));
        int idx_before = 0;
        for (std::int64_t i = 0; i < order.num_tiles(); ++i) {
          const WorkCoord x = work_coord(order, i);
          ASSERT_TRUE(x.head_idx >= 0 && x.head_idx < heads && x.idx >= 0 &&
                      x.idx < tiles_per_head);
          ++taken[static_cast<std::size_t>(x.head_idx * tiles_per_head + x.idx)];
          if (x.head_idx >= heads - order.last_heads) {
            EXPECT_GE(x.idx, idx_before);
            idx_before = x.idx;
          } else {
            EXPECT_EQ(x.head_idx * tiles_per_head + x.idx, i);
          }
        }
        EXPECT_EQ(std::ranges::count(taken, 1), order.num_tiles());
        EXPECT_TRUE(order.last_heads == heads || (order.last_heads * tiles_per_head >= slots &&
                                                  (order.last_heads - 1) * tiles_per_head < slots));
      }
  EXPECT_EQ(work_order(p, 0, 132).num_tiles(), 0);
  p.causal = HEADRACE_CAUSAL_NONE;
  EXPECT_EQ(work_order(p, 4, 132).last_heads, 0);
}

// The swizzle permutes address bits within a row, and each warp has its own rows of Q.
TEST(Sm80Config, TilesAreAlignedToTheLengthOfARow) {
  for (const bool is_f32 : {false, true})
    for (const int dim : kHeadDims)
      for (const bool is_general : {false, true}) {
        const Tile tile = tile_of(is_f32, dim, is_general);
        const SmemPlan smem = smem_plan(tile, is_f32 ? 4 : 2, is_general);
        const int row_bytes = dim * (is_f32 ? 4 : 2);
        for (const int at : {smem.k, smem.v, smem.q, smem.tile_bytes}) EXPECT_EQ(at % row_bytes, 0);
        EXPECT_LE(tile.warps, kMaxWarps);
        EXPECT_EQ(kMinSplitKeys % tile.keys, 0);
      }
}

TEST(Sm80Config, BucketIsTheSmallestThatHoldsBothHeadDims) {
  Problem p = problem(1, 1, 1, 64);
  EXPECT_EQ(head_dim_bucket(p), 64);
  p.head_dim_v = 65;
  EXPECT_EQ(head_dim_bucket(p), 128);
  p.head_dim = 256;
  EXPECT_EQ(head_dim_bucket(p), 256);
  p.head_dim = 257;
  EXPECT_EQ(head_dim_bucket(p), 0);
}

TEST(Sm80Config, SplitsCoverTheKeysInWholeTiles) {
  for (const std::int64_t seqlen_k : {0, 1, 255, 256, 257, 4096, 16384, 16385, 100000})
    for (const int num_splits : {0, 1, 3, 1000}) {
      Problem p = problem(1, seqlen_k, 4, 128);
      p.num_splits = num_splits;
      const Tile tile = tile_of(p, 0);
      const SplitPlan plan = plan_splits(split_rule(p), tile, 1, seqlen_k);
      EXPECT_GE(plan.num_splits, 1);
      EXPECT_GE(plan.num_splits * plan.split_keys, seqlen_k);
      EXPECT_LT((plan.num_splits - 1) * plan.split_keys, std::max<std::int64_t>(seqlen_k, 1));
      EXPECT_EQ(plan.split_keys % tile.keys, 0);
      EXPECT_LE(plan.num_splits, num_splits == 0 ? kMaxSplits : num_splits + 1);
    }
}

TEST(Sm80Config, StrictRowsAndLongQueriesAreNotSplit) {
  Problem p = problem(1, 100000, 4, 128);
  p.strict_rows = 1;
  EXPECT_EQ(plan_splits(split_rule(p), tile_of(p, 0), 1, 100000).num_splits, 1);
  p.strict_rows = 0;
  EXPECT_GT(plan_splits(split_rule(p), tile_of(p, 0), 16, 100000).num_splits, 1);
  EXPECT_EQ(plan_splits(split_rule(p), tile_of(p, 0), 17, 100000).num_splits, 1);
}

// A shorter sequence of a ragged batch may have more splits than the longest.
TEST(Sm80Config, WorkspaceHoldsEverySequenceOfARaggedBatch) {
  for (const int num_splits : {0, 3, 40}) {
    Problem p = problem(16, 20000, 4, 64);
    p.is_ragged = 1;
    p.num_splits = num_splits;
    const Tile tile = tile_of(p, 0);
    const SplitLayout partials = split_layout(p, tile);
    for (std::int64_t seqlen_k = 0; seqlen_k <= p.seqlen_k; seqlen_k += 61)
      for (const std::int64_t seqlen_q : {1, 7, 16}) {
        const SplitPlan plan = plan_splits(split_rule(p), tile, seqlen_q, seqlen_k);
        EXPECT_LE(plan.num_splits, partials.max_splits) << seqlen_q << ' ' << seqlen_k;
        EXPECT_TRUE(plan.num_splits == 1 || seqlen_q * 4 <= partials.rows);
      }
  }
}

}  // namespace
}  // namespace headrace::cuda::sm80::fwd
