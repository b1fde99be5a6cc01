#include "backends/cpu/attention/flash/config.h"

#include <gtest/gtest.h>

#include <utility>

namespace headrace::cpu::flash {
namespace {

Problem problem(int64_t seqlen_q, int64_t seqlen_k, int64_t group, int64_t head_dim) {
  Problem p{};
  p.k_dtype = p.v_dtype = -1;
  p.batch = 1;
  p.seqlen_q = seqlen_q;
  p.seqlen_k = seqlen_k;
  p.num_heads = group;
  p.num_kv_heads = 1;
  p.head_dim = p.head_dim_v = head_dim;
  p.window_left = p.window_right = -1;
  p.bias_dtype = -1;
  return p;
}

constexpr IsaShape kShapes[] = {{1, 4, 4, 1}, {8, 6, 16, 1}, {16, 12, 32, 1}, {16, 12, 32, 2}};

TEST(FlashConfig, SplitsCoverTheKeysInWholeTiles) {
  for (const int64_t seqlen_k : {0, 1, 511, 512, 513, 4096, 16384, 16385, 100000}) {
    for (const int num_splits : {0, 1, 3, 1000}) {
      Problem p = problem(1, seqlen_k, 4, 128);
      p.num_splits = num_splits;
      const SequencePlan plan = plan_sequence(p, 1, seqlen_k);
      EXPECT_GE(plan.num_splits, 1);
      EXPECT_GE(plan.num_splits * plan.split_keys, seqlen_k);
      EXPECT_LT((plan.num_splits - 1) * plan.split_keys, std::max<int64_t>(seqlen_k, 1));
      EXPECT_TRUE(plan.num_splits == 1 || plan.split_keys % largest_tile(p).n == 0);
      EXPECT_TRUE(num_splits == 0 || plan.num_splits <= num_splits);
    }
  }
}

TEST(FlashConfig, ManyRowsAreSplitWithStrictRowsAlone) {
  EXPECT_EQ(plan_sequence(problem(65, 100000, 1, 64), 65, 100000).num_splits, 1);
  EXPECT_GT(plan_sequence(problem(64, 100000, 1, 64), 64, 100000).num_splits, 1);
  for (const int64_t seqlen_q : {1, 16, 64, 65, 1000}) {
    Problem strict = problem(seqlen_q, 100000, 1, 64);
    strict.strict_rows = 1;
    const SequencePlan plan = plan_sequence(strict, seqlen_q, 100000);
    EXPECT_EQ(plan.path, Path::packed);
    EXPECT_EQ(plan.split_keys, kPackedSplitKeys);
    EXPECT_EQ(plan.num_key_tasks > 1, seqlen_q <= 64);
  }
}

// The boundaries of splits and groups are the same for every length, and there are enough tasks for
// many threads, but not one for each 512 keys of a long sequence.
TEST(FlashConfig, SplitsBeginAtFixedKeys) {
  for (const int64_t head_dim : {64, 256, 576}) {
    for (const int64_t seqlen_k : {1, 512, 513, 16385, 32768, 32769, 131072, 1000000}) {
      const Problem p = problem(1, seqlen_k, 4, head_dim);
      const SequencePlan plan = plan_sequence(p, 1, seqlen_k);
      EXPECT_EQ(plan.split_keys, kDirectSplitKeys);
      EXPECT_EQ(plan_sequence(p, 16, seqlen_k).split_keys, kPackedSplitKeys);
      EXPECT_EQ(kPackedSplitKeys % largest_tile(p).n, 0);
      EXPECT_EQ(plan.split_keys % largest_tile(p).n, 0);
      EXPECT_EQ(kGroupSplits % plan.task_splits, 0);
      EXPECT_GE(plan.num_key_tasks, std::min<int64_t>(ceil_div<int64_t>(seqlen_k, 512), 16));
      EXPECT_LE(plan.num_key_tasks, std::max<int64_t>(64, ceil_div<int64_t>(seqlen_k, 2048)));
    }
  }
}

// Few threads need few tasks, and more of them change nothing but how many splits a task has.
TEST(FlashConfig, TasksHaveGroupsOfSplitsWhereFewerKeepThreadsBusy) {
  for (const int64_t seqlen_k : {1, 512, 513, 1024, 2049, 8192, 16385, 32768, 32769}) {
    const Problem p = problem(1, seqlen_k, 4, 128);
    const SequencePlan most = plan_sequence(p, 1, seqlen_k);
    const int64_t groups = ceil_div(most.num_splits, kGroupSplits);
    for (const int64_t min_tasks : {1, 2, 4, 8, 16, 17, 64, 1000}) {
      const SequencePlan plan = plan_sequence(p, 1, seqlen_k, min_tasks);
      EXPECT_EQ(plan.path, most.path);
      EXPECT_EQ(plan.num_splits, most.num_splits);
      EXPECT_EQ(plan.split_keys, most.split_keys);
      const bool has_groups = most.num_splits > 64 || (groups >= min_tasks && groups >= 2);
      EXPECT_EQ(plan.task_splits, has_groups ? 4 : 1) << seqlen_k << " " << min_tasks;
      EXPECT_EQ(plan.num_key_tasks, has_groups ? groups : most.num_splits);
    }
  }
  Problem p = problem(1, 32768, 4, 128);
  EXPECT_EQ(min_key_tasks(p, 2), 8);
  EXPECT_EQ(plan_sequence(p, 1, 32768, min_key_tasks(p, 4)).num_key_tasks, 16);
  EXPECT_EQ(plan_sequence(p, 1, 32768, min_key_tasks(p, 5)).num_key_tasks, 64);
  p.batch = 3;
  EXPECT_EQ(min_key_tasks(p, 8), 11);
  p.batch = 0;
  EXPECT_EQ(min_key_tasks(p, 1), 4);
}

// In a ragged batch the partial results of every sequence up to the longest must fit.
TEST(FlashConfig, PartialsHoldEveryShorterSequence) {
  for (const int64_t max_k : {1, 600, 16385, 40001, 140000}) {
    for (const auto& [num_splits, min_tasks] :
         {std::pair{0, 64}, {0, 1}, {0, 9}, {7, 64}, {7, 1}}) {
      Problem p = problem(5, max_k, 4, 64);
      p.is_ragged = 1;
      p.num_splits = num_splits;
      const Partials room = partials_layout(p, scratch_layout(p, largest_tile(p), kShapes[1]),
                                            plan_sequence(p, p.seqlen_q, p.seqlen_k, min_tasks));
      for (int64_t seqlen_q = 0; seqlen_q <= 5; ++seqlen_q) {
        for (int64_t seqlen_k = 0; seqlen_k <= max_k; seqlen_k += seqlen_k < 2000 ? 1 : 127) {
          const SequencePlan plan = plan_sequence(p, seqlen_q, seqlen_k, min_tasks);
          ASSERT_LE(plan.num_splits, room.max_splits) << seqlen_q << " " << seqlen_k;
          ASSERT_LE(plan.num_key_tasks, room.max_tasks) << seqlen_q << " " << seqlen_k;
          ASSERT_TRUE(plan.num_key_tasks == 1 || seqlen_q * 4 <= room.rows);
        }
      }
    }
  }
}

TEST(FlashConfig, ScratchPartsDoNotOverlap) {
  for (const IsaShape& isa : kShapes) {
    for (const int64_t head_dim : {1, 7, 64, 100, 128, 200, 256, 576}) {
      const Problem p = problem(1000, 1000, 1, head_dim);
      const Tile tile = largest_tile(p);
      const Scratch x = scratch_layout(p, tile, isa);
      const int64_t m = round_up<int64_t>(tile.m, isa.tile_rows);
      const int64_t panels = ceil_div<int64_t>(tile.n, isa.tile_cols);
      EXPECT_GE(x.q_stride * isa.pair, head_dim);
      EXPECT_GE(x.k - x.q, m * x.q_stride);
      EXPECT_GE(x.k_panel, ceil_div<int64_t>(head_dim, isa.pair) * isa.tile_cols);
      EXPECT_GE(x.v - x.k, panels * x.k_panel);
      EXPECT_GE(x.s - x.v, ceil_div<int64_t>(head_dim, isa.tile_cols) * x.v_panel);
      EXPECT_GE(x.o - x.s, kSweepRows * tile.n);
      EXPECT_EQ(kSweepRows % isa.tile_rows, 0);
      EXPECT_GE(x.rows - x.o, m * x.o_stride);
      EXPECT_GE(x.partials - x.rows, kRowArrays * m);
      for (const int64_t part : {x.q, x.k, x.v, x.s, x.o, x.rows, x.partials, x.partial, x.total})
        EXPECT_EQ(part % 16, 0);
      EXPECT_EQ(x.total, x.partials);
      Problem strict = p;
      strict.strict_rows = 1;
      const Scratch y = scratch_layout(strict, tile, isa);
      EXPECT_GE(y.total - y.partials, 2 * tile.m * (y.o_stride + 2));
    }
  }
}

// A tile's working set fits the L2 cache of a core (512 KiB and up, minus a page).
TEST(FlashConfig, ScratchFitsTheL2Cache) {
  static_assert(kDirectRows <= kSweepRows);
  for (const int64_t head_dim : {64, 128, 256}) {
    const Problem p = problem(1000, 1000, 1, head_dim);
    for (const int64_t l2_bytes : {512 * 1024, 1024 * 1024, 2048 * 1024})
      EXPECT_LE(scratch_layout(p, largest_tile(p, l2_bytes), kShapes[1]).total * 4, l2_bytes)
          << head_dim;
  }
}

}  // namespace
}  // namespace headrace::cpu::flash
