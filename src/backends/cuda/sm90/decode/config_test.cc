// Splits, work items, shared memory and workspace of the Hopper decode kernel: arithmetic that
// needs no GPU.
#include "backends/cuda/sm90/decode/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

namespace headrace::cuda::sm90::decode {
namespace {

constexpr int kDims[] = {64, 128}, kRowBuckets[] = {8, 16};

TEST(DecodeSmem, FitsAndDoesNotOverlap) {
  for (const int dim : kDims)
    for (const int rows : kRowBuckets) {
      const SmemPlan s = smem_plan(dim, rows);
      EXPECT_LE(s.total, kSmemLimitSm90) << dim << " " << rows;
      const int begins[] = {0,        s.merge, s.run_sums,  s.row_sums,   s.q,
                            s.full,   s.empty, s.item_full, s.item_empty, s.written,
                            s.opened, s.items, s.is_last};
      for (std::size_t i = 1; i < std::size(begins); ++i) EXPECT_LE(begins[i - 1], begins[i]) << i;
      EXPECT_EQ(s.merge, s.stages * kConsumerWarps * s.block);
      EXPECT_GE(s.run_sums - s.merge, kConsumerWarps * s.merge_rows * s.merge_pitch);
      EXPECT_GE(s.q - s.row_sums, kConsumerWarps * rows * 8);
      EXPECT_GE(s.empty - s.full, s.stages * kConsumerWarps * 8);
    }
}

// Swizzle atoms begin at multiples of 1024 bytes, bulk copies and vectors at multiples of 16.
TEST(DecodeSmem, IsAligned) {
  for (const int dim : kDims)
    for (const int rows : kRowBuckets) {
      const SmemPlan s = smem_plan(dim, rows);
      EXPECT_EQ(s.block % 1024, 0);
      for (const int at : {s.merge, s.run_sums, s.row_sums, s.q, s.q_pitch, s.merge_pitch})
        EXPECT_EQ(at % 16, 0) << dim << " " << rows;
      EXPECT_EQ(s.full % 8, 0);
      EXPECT_EQ(rows % s.merge_rows, 0);
    }
}

Problem problem(std::int64_t seqlen_q, std::int64_t seqlen_k) {
  Problem p{};
  p.window_left = p.window_right = -1;
  p.seqlen_q = seqlen_q;
  p.seqlen_k = seqlen_k;
  return p;
}

TEST(DecodeKeys, AreThoseThatAnyRowSees) {
  Problem p = problem(3, 1000);
  EXPECT_EQ(union_of_visible_keys(p).begin, 0);
  EXPECT_EQ(union_of_visible_keys(p).end, 1000);
  p.window_left = 10;
  EXPECT_EQ(union_of_visible_keys(p).begin, 987);
  p.causal = HEADRACE_CAUSAL_TOP_LEFT;
  EXPECT_EQ(union_of_visible_keys(p).end, 3);
  p = problem(4, 2);  // the first two rows see nothing
  p.causal = HEADRACE_CAUSAL_BOTTOM_RIGHT;
  EXPECT_EQ(union_of_visible_keys(p).begin, 0);
  EXPECT_EQ(union_of_visible_keys(p).end, 2);
  p.seqlen_k = 0;
  EXPECT_EQ(union_of_visible_keys(p).end, 0);
}

constexpr KeyRange kRanges[] = {
    {0, 0},       {0, 1},       {0, 64},       {0, 65},     {0, 512},    {0, 513},
    {0, 2048},    {0, 2049},    {63, 64},      {64, 65},    {511, 513},  {700, 701},
    {1500, 2100}, {2047, 2049}, {5000, 70001}, {0, 131072}, {0, 131073}, {16383, 16385}};
constexpr int kUnits[] = {1, 2, 7, 66, 132, 5000};
constexpr std::int64_t kBatchHeads[] = {1, 3, 8, 512, 4096};

template <class Fn>
void for_each_plan(const Fn& fn) {
  for (const KeyRange& keys : kRanges)
    for (const int units : kUnits)
      for (const std::int64_t heads : kBatchHeads)
        fn(keys, units, heads, plan_work(keys, heads, units));
}

// Keys of an item: a split, or run_groups groups at a multiple of that.
int item_keys(const WorkPlan& w) {
  return w.item_kind == ItemKind::split ? kSplitKeys : w.run_groups * kGroupKeys;
}

TEST(DecodeWork, ItemsCoverTheKeysOnce) {
  for_each_plan([](const KeyRange& keys, int, std::int64_t heads, const WorkPlan& w) {
    EXPECT_EQ(w.num_items, w.items_per_head * heads);
    const std::int64_t begin = std::int64_t{w.first_item} * item_keys(w);
    const std::int64_t end = begin + std::int64_t{w.items_per_head} * item_keys(w);
    EXPECT_LE(begin, keys.begin);
    EXPECT_GT(begin + item_keys(w), keys.begin);
    EXPECT_GE(end, keys.end);
    EXPECT_LT(end - item_keys(w), std::max(keys.end, keys.begin + 1));
  });
}

// An item writes whole partial results, so no two items share one.
TEST(DecodeWork, PartialResultsBelongToOneItem) {
  for_each_plan([](const KeyRange& keys, int, std::int64_t, const WorkPlan& w) {
    if (w.partials_per_head == 0) {
      EXPECT_EQ(w.items_per_head, 1);
      return;
    }
    const int size = keys_of(w.partial_kind);
    EXPECT_EQ(w.item_kind == ItemKind::split, w.partial_kind == PartialKind::split);
    EXPECT_EQ(item_keys(w) % size, 0);
    EXPECT_LE(std::int64_t{w.first_partial} * size, keys.begin);
    EXPECT_GE(std::int64_t{w.first_partial + w.partials_per_head} * size, keys.end);
    EXPECT_GE(w.partials_per_head, w.items_per_head);
  });
}

TEST(DecodeWork, TakesSplitsWhereGroupsLeaveMultiprocessorsIdle) {
  EXPECT_EQ(plan_work({0, 1024}, 8, 132).item_kind, ItemKind::split);
  EXPECT_EQ(plan_work({0, 1024}, 8, 132).num_items, 128);
  EXPECT_EQ(plan_work({0, 8192}, 8, 132).item_kind, ItemKind::run);
  EXPECT_EQ(plan_work({0, 8192}, 8, 132).run_groups, 1);
  EXPECT_EQ(plan_work({0, 8192}, 512, 132).run_groups, 16);
  EXPECT_EQ(plan_work({0, 8192}, 512, 132).partials_per_head, 0);
}

TEST(DecodeWorkspace, HoldsEveryPartialResult) {
  for_each_plan([](const KeyRange&, int, std::int64_t heads, const WorkPlan& w) {
    for (const int dim : kDims)
      for (const std::int64_t rows : {1, 7, 16}) {
        const WorkspacePlan x = workspace_plan(w, heads, rows, dim);
        const std::int64_t partial_rows = heads * w.partials_per_head * rows;
        EXPECT_GE(x.arrived, static_cast<std::int64_t>(sizeof(CounterWords)));
        EXPECT_GE(x.row_sums - x.arrived, 4 * x.num_arrived);
        EXPECT_GE(x.o - x.row_sums, 8 * partial_rows * x.copies);
        EXPECT_GE(x.total - x.o, 4 * partial_rows * dim);
        for (const std::int64_t at : {x.arrived, x.row_sums, x.o})
          EXPECT_EQ(at % kWorkspaceAlignment, 0);
      }
  });
}

}  // namespace
}  // namespace headrace::cuda::sm90::decode
