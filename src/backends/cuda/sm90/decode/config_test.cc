// Splits, work items, shared memory and workspace of the Hopper decode kernel: arithmetic that
// needs no GPU.
#include "backends/cuda/sm90/decode/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <vector>

namespace headrace::cuda::sm90::decode {
namespace {

constexpr int kDims[] = {64, 128}, kRowBuckets[] = {8, 16};

TEST(DecodeSmem, FitsAndDoesNotOverlap) {
  for (const int dim : kDims)
    for (const int rows : kRowBuckets) {
      const SmemPlan s = smem_plan(dim, rows);
      EXPECT_LE(s.total, kSmemLimitSm90) << dim << " " << rows;
      const int begins[] = {0,         s.merge,  s.run_sums,    s.row_sums,  s.q,
                            s.items,   s.batch,  s.merge_pairs, s.ids,       s.run_log2,
                            s.full,    s.empty,  s.announced,   s.item_full, s.item_empty,
                            s.written, s.opened, s.is_last};
      for (std::size_t i = 1; i < std::size(begins); ++i) EXPECT_LE(begins[i - 1], begins[i]) << i;
      EXPECT_EQ(s.merge, s.stages * kConsumerWarps * s.block);
      EXPECT_GE(s.run_sums - s.merge, kConsumerWarps * s.merge_rows * s.merge_pitch);
      EXPECT_GE(s.q - s.row_sums, kConsumerWarps * rows * 8);
      EXPECT_GE(s.batch - s.items, kItemSlots * kItemBytes);
      EXPECT_GE(s.merge_pairs - s.batch,
                16 * kRowEntries + 4 * (2 * kBatchEntries + kCountThreads / 8));
      EXPECT_GE(s.empty - s.full, s.stages * kConsumerWarps * 8);
    }
}

// Swizzle atoms begin at multiples of 1024 bytes, bulk copies and vectors at multiples of 16.
TEST(DecodeSmem, IsAligned) {
  for (const int dim : kDims)
    for (const int rows : kRowBuckets) {
      const SmemPlan s = smem_plan(dim, rows);
      EXPECT_EQ(s.block % 1024, 0);
      for (const int at :
           {s.merge, s.run_sums, s.row_sums, s.q, s.q_pitch, s.merge_pitch, s.items, s.batch})
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

// The union of visible_keys(), query by query.
KeyRange union_of_visible_keys(const Problem& p) {
  KeyRange all{p.seqlen_k, 0};
  for (std::int64_t q_idx = 0; q_idx < p.seqlen_q; ++q_idx) {
    const KeyRange keys = visible_keys(p, q_idx, p.seqlen_q, p.seqlen_k);
    if (keys.begin == keys.end) continue;
    all = {std::min(all.begin, keys.begin), std::max(all.end, keys.end)};
  }
  return all.begin < all.end ? all : KeyRange{0, 0};
}

TEST(DecodeKeys, AreThoseThatTheQueriesSee) {
  for (const std::int64_t seqlen_q : {0, 1, 2, 5, 16})
    for (const std::int64_t seqlen_k : {0, 1, 3, 5, 6, 40, 1000})
      for (const std::int64_t left : {-1, 0, 1, 4, 30, 5000})
        for (const std::int64_t right : {-1, 0, 2, 5000})
          for (const int causal : {0, 1, 2}) {
            Problem p = problem(seqlen_q, seqlen_k);
            p.window_left = left;
            p.window_right = right;
            p.causal = causal;
            const SequenceKeys keys = keys_of_sequence(window_of(p), static_cast<int>(seqlen_q),
                                                       static_cast<int>(seqlen_k));
            const KeyRange expected = union_of_visible_keys(p);
            ASSERT_EQ(keys.first_key, expected.begin) << seqlen_q << " " << seqlen_k << " " << left;
            ASSERT_EQ(keys.end_key, expected.end) << seqlen_q << " " << seqlen_k << " " << left;
            for (std::int64_t q = 0; q < seqlen_q; ++q) {
              const KeyRange of_query = visible_keys(p, q, seqlen_q, seqlen_k);
              if (of_query.begin == of_query.end) continue;
              ASSERT_EQ(std::max<std::int64_t>(keys.left + q, 0), of_query.begin);
              ASSERT_EQ(std::min(keys.right + q, seqlen_k), of_query.end);
            }
          }
}

constexpr SequenceKeys range(int begin, int end) { return {0, end, begin, end}; }
constexpr SequenceKeys kRanges[] = {
    range(0, 0),      range(0, 1),      range(0, 64),       range(0, 65),      range(0, 512),
    range(0, 513),    range(0, 8192),   range(0, 8193),     range(63, 64),     range(64, 65),
    range(511, 513),  range(700, 701),  range(1500, 2100),  range(8191, 8193), range(5000, 70001),
    range(0, 131072), range(0, 131073), range(16383, 16385)};
constexpr int kUnits[] = {1, 2, 7, 66, 132, 5000};
constexpr std::int64_t kBatchHeads[] = {1, 3, 8, 512, 4096};

// Of a persistent grid: partial results of so many rows never fit a cluster, and a shared prefix
// leaves no equal shares.
WorkSize grid_size(const SequenceKeys& longest, bool is_uniform, std::int64_t heads) {
  return {.longest = longest,
          .is_uniform = is_uniform,
          .batch_heads = heads,
          .rows = 1 << 20,
          .dim = 128,
          .may_share_prefix = true};
}

// Items of a head: as the kernel finds them.
struct Span {
  int begin, end;  // keys
};
std::vector<Span> items_of(const WorkPlan& w, const SequenceKeys& keys) {
  std::vector<Span> items;
  const HeadWork work = head_work(keys, w.run_log2);
  const int size = kGroupKeys << w.run_log2;
  for (int i = 0; i < work.num_items; ++i) {
    const int first = (keys.first_key / size + i) * size;
    items.push_back({first, first + size});
  }
  return items;
}

TEST(DecodeWork, ItemsCoverTheKeysOnce) {
  for (const SequenceKeys& keys : kRanges)
    for (const int units : kUnits)
      for (const std::int64_t heads : kBatchHeads) {
        const WorkPlan w = plan_work(grid_size(keys, true, heads), units);
        const std::vector<Span> items = items_of(w, keys);
        EXPECT_EQ(w.num_items, static_cast<std::int64_t>(items.size()) * heads);
        EXPECT_LE(items.front().begin, keys.first_key);
        EXPECT_GT(items.front().end, keys.first_key);
        EXPECT_GE(items.back().end, keys.end_key);
        EXPECT_LT(items.back().begin, std::max(keys.end_key, keys.first_key + 1));
        // An item lies in one chunk, so that it leaves groups or one chunk.
        constexpr int kChunkKeys = kGroupKeys * kChunkGroups;
        for (const Span& item : items)
          EXPECT_EQ(item.begin / kChunkKeys, (item.end - 1) / kChunkKeys);
      }
}

// Where lengths are read on the device, the plan's numbers are upper bounds for every length.
TEST(DecodeWork, BoundsHoldForShorterSequences) {
  for (const int longest : {1, 64, 513, 8192, 20000})
    for (const int window : {-1, 0, 100, 512, 9000})
      for (const int units : {2, 132})
        for (const std::int64_t heads : {1, 8, 4096}) {
          Problem p = problem(1, longest);
          p.window_left = window;
          p.causal = HEADRACE_CAUSAL_BOTTOM_RIGHT;
          const WorkPlan bound =
              plan_work(grid_size(keys_of_sequence(window_of(p), 1, longest), false, heads), units);
          for (int length = 0; length <= longest; length += 1 + length / 7) {
            const SequenceKeys keys = keys_of_sequence(window_of(p), 1, length);
            const int run = choose_run(groups_of(keys).count * heads, units);
            const HeadWork work = head_work(keys, run);
            EXPECT_LE(work.num_items * heads, bound.num_items) << longest << " " << length;
            EXPECT_LE(work.num_slots * heads, bound.num_slots) << longest << " " << length;
          }
        }
}

TEST(DecodeWork, RunsLeaveOneForEachMultiprocessor) {
  const auto plan = [](int seqlen_k, std::int64_t heads) {
    return plan_work(grid_size(range(0, seqlen_k), true, heads), 132);
  };
  EXPECT_EQ(plan(8192, 8).run_log2, 0);
  EXPECT_EQ(plan(8192, 8).num_slots, 128);
  EXPECT_EQ(plan(8192, 512).run_log2, 4);
  EXPECT_EQ(plan(8192, 512).num_slots, 0);
}

TEST(DecodeClusters, TakeLittleWork) {
  const auto cluster = [](int seqlen_k, std::int64_t heads, int rows, int dim) {
    return choose_cluster({.longest = range(0, seqlen_k),
                           .is_uniform = true,
                           .batch_heads = heads,
                           .rows = rows,
                           .dim = dim},
                          132);
  };
  EXPECT_EQ(cluster(0, 8, 4, 128), 1);
  EXPECT_EQ(cluster(64, 8, 4, 128), 1);
  EXPECT_EQ(cluster(65, 8, 4, 128), 2);
  EXPECT_EQ(cluster(1024, 8, 4, 128), 8);
  EXPECT_EQ(cluster(1024, 64, 4, 128), 2);
  EXPECT_EQ(cluster(2048, 132, 4, 128), 1);  // 32 splits in each CTA
  EXPECT_EQ(cluster(2049, 132, 4, 128), 0);
  EXPECT_EQ(cluster(512, 133, 4, 128), 0);  // more heads than multiprocessors
  EXPECT_EQ(cluster(4096, 15, 4, 128), 8);  // 15 clusters of 8 and 30 of 4 run at the same time
  EXPECT_EQ(cluster(4096, 16, 4, 128), 4);
  EXPECT_EQ(cluster(4096, 30, 4, 128), 4);
  EXPECT_EQ(cluster(4096, 31, 4, 128), 2);
  EXPECT_EQ(cluster(4096, 66, 4, 128), 2);
  EXPECT_EQ(cluster(16384, 8, 4, 128), 8);  // 32 splits in each of 8 CTAs
  EXPECT_EQ(cluster(16385, 8, 4, 128), 0);
  EXPECT_EQ(cluster(5120, 8, 16, 128), 8);  // 80 splits of 16 * 72 bytes, beside 128 KiB
  EXPECT_EQ(cluster(8192, 8, 16, 128), 0);
  EXPECT_EQ(cluster(8192, 8, 16, 64), 8);
}

WorkSize few_sequences(int keys, std::int64_t batch, std::int64_t kv_heads) {
  return {.longest = range(0, keys),
          .is_uniform = true,
          .batch_heads = batch * kv_heads,
          .rows = 4,
          .dim = 128,
          .batch = batch};
}

TEST(DecodeShares, AreTakenWhereClustersLeaveMultiprocessorsIdle) {
  const auto has_shares = [](const WorkSize& x, int num_units = 132) {
    const WorkPlan w = plan_work(x, num_units);
    EXPECT_EQ(w.share_slots > 0 && w.cluster_size > 0, false);
    return w.share_slots > 0;
  };
  EXPECT_FALSE(has_shares(few_sequences(4096, 1, 8)));  // a group for a CTA in either case
  EXPECT_TRUE(
      has_shares(few_sequences(8192, 1, 8)));  // 8 x 8 CTAs with two groups, or 128 with one
  EXPECT_FALSE(has_shares(few_sequences(4096, 8, 8)));  // 128 CTAs with four groups in either case
  EXPECT_TRUE(has_shares(few_sequences(8192, 8, 8)));
  EXPECT_FALSE(has_shares(few_sequences(1024, 257, 1)));  // a thread has a sequence
  EXPECT_TRUE(has_shares(few_sequences(1024, 256, 1)));
  EXPECT_TRUE(has_shares(few_sequences(132 * 16 * kGroupKeys, 1, 1)));  // 16 groups for a CTA
  EXPECT_FALSE(has_shares(few_sequences(132 * 16 * kGroupKeys + 1, 1, 1)));
  WorkSize prefixes = few_sequences(8192, 8, 8);
  prefixes.may_share_prefix = true;
  EXPECT_FALSE(has_shares(prefixes));
}

TEST(DecodeShares, HaveASlotForEachGroupOfAHead) {
  for (const SequenceKeys& keys : kRanges)
    for (const bool is_uniform : {true, false}) {
      WorkSize size{
          .longest = keys, .is_uniform = is_uniform, .batch_heads = 6, .rows = 4, .dim = 64};
      size.run_groups = kEqualShares;
      const WorkPlan w = plan_work(size, 132);
      // A shorter sequence with a window may begin anywhere.
      int most = groups_of(keys).count;
      for (int shift = 0; shift < kGroupKeys && shift <= keys.first_key && !is_uniform; ++shift)
        most =
            std::max(most, groups_of({0, 0, keys.first_key - shift, keys.end_key - shift}).count);
      EXPECT_GE(w.share_slots, most);
      EXPECT_EQ(w.num_slots, std::int64_t{6} * w.share_slots);
      EXPECT_EQ(w.cluster_size, 0);
      EXPECT_GE(w.num_items, 1);
      EXPECT_LE(w.num_items, std::min<std::int64_t>(w.num_slots, 132));
    }
}

// Heads that a share has alone need no second kernel; where there are fewer heads than shares, most
// are cut.
TEST(DecodeShares, WriteTheRowsOfWholeHeadsWhereThereAreMany) {
  const auto writes_rows = [](const WorkSize& x) { return plan_work(x, 132).has_cut_heads; };
  EXPECT_FALSE(writes_rows(few_sequences(8192, 8, 8)));
  EXPECT_FALSE(writes_rows(few_sequences(2048, 16, 8)));
  EXPECT_TRUE(writes_rows(few_sequences(1024, 64, 8)));
}

TEST(DecodeShares, FitSharedMemory) {
  for (const int dim : kDims)
    for (const int rows : {8, 16}) {
      const ShareSmemPlan s = share_smem_plan(dim, rows);
      EXPECT_LE(s.total, kSmemLimitSm90);
      EXPECT_EQ((kShareWarps * s.block) << s.stages_log2, kMaxRingBytes);
      EXPECT_EQ(s.o_pitch % 8, 0);  // pairs of columns
    }
  // A warp for each 64 columns of a chunk, whole ones, and a chunk more for a window.
  EXPECT_EQ(append_threads(128, 1), 128);
  EXPECT_EQ(append_threads(128, 64), 5 * 64);
  EXPECT_EQ(append_threads(128, 1000), kMaxAppendThreads);
  EXPECT_EQ(append_threads(64, 1000), kMaxAppendThreads);
}

// Choices of a TuningConfig: every offered one has room, covers the keys and keeps its order.
TEST(DecodeWork, TunedRunsCoverTheKeysOnce) {
  for (const SequenceKeys& keys : kRanges)
    for (const int run_groups : {1, 2, 4, 8, 16}) {
      WorkSize size{.longest = keys, .is_uniform = true, .batch_heads = 8, .rows = 4, .dim = 128};
      size.run_groups = run_groups;
      const WorkPlan w = plan_work(size, 132);
      EXPECT_EQ(w.cluster_size, 0);
      EXPECT_EQ(1 << w.run_log2, run_groups);
      const std::vector<Span> items = items_of(w, keys);
      EXPECT_EQ(w.num_items, static_cast<std::int64_t>(items.size()) * 8);
      EXPECT_LE(items.front().begin, keys.first_key);
      EXPECT_GE(items.back().end, keys.end_key);
    }
}

TEST(DecodeClusters, TunedSizesHoldTheirPartialResults) {
  int num_offered = 0;
  for (const SequenceKeys& keys : kRanges)
    for (const int dim : kDims)
      for (const int rows : {1, 4, 8, 9, 16})
        for (int cluster = 1; cluster <= kMaxClusterSize; cluster *= 2) {
          WorkSize size{
              .longest = keys, .is_uniform = true, .batch_heads = 8, .rows = rows, .dim = dim};
          size.cluster_size = cluster;
          if (!fits_cluster(size, cluster)) continue;
          ++num_offered;
          const WorkPlan w = plan_work(size, 132);
          EXPECT_EQ(w.cluster_size, cluster);
          EXPECT_LE(w.cluster_smem_bytes, kSmemLimitSm90);
          const int splits = splits_of(keys).count, splits_of_cta = ceil_div(splits, cluster);
          const ClusterSmemPlan s = cluster_smem_plan(dim, row_bucket(rows), w.cluster_ring_log2,
                                                      splits * rows * partial_pitch(dim, cluster));
          EXPECT_GE(w.cluster_smem_bytes, s.total);
          EXPECT_GE(w.cluster_threads, 32 * std::min(kClusterWarps, splits_of_cta));
          // Each warp with splits has at least four blocks of the ring.
          const auto warps =
              std::bit_ceil(static_cast<unsigned>(std::min(kClusterWarps, splits_of_cta)));
          EXPECT_GE(1 << w.cluster_ring_log2, 4 * static_cast<int>(warps));
          // Merged groups take the place of the ring.
          const int groups = splits / kGroupSplits + 2;
          EXPECT_LE(16 * rows * groups * dim / 2 / cluster, s.block << w.cluster_ring_log2)
              << splits << " " << rows << " " << dim << " " << cluster;
          EXPECT_EQ(w.num_items, 8 * cluster);
          EXPECT_EQ(w.num_slots, 0);
        }
  EXPECT_GT(num_offered, 100);
}

TEST(DecodeClusters, SmemDoesNotOverlap) {
  for (const int dim : kDims)
    for (const int rows : kRowBuckets)
      for (int splits = 1; splits <= kClusterWarps * kMaxWarpSplits; ++splits) {
        const int ring_log2 = cluster_ring_log2(dim, splits);
        const ClusterSmemPlan s = cluster_smem_plan(dim, rows, ring_log2, 1000);
        EXPECT_EQ(s.block % 1024, 0);
        EXPECT_LE(s.block << ring_log2, kMaxRingBytes);
        EXPECT_GE(s.q, s.block << ring_log2);
        EXPECT_GE(s.arrived - s.q, rows * s.q_pitch);
        // In the place of Q.
        EXPECT_GE(s.arrived - s.q, kClusterWarps * kPartsAtOnce * 8);
        EXPECT_GE(s.partials - s.arrived, 8);
        EXPECT_GE(s.total - 1024 - s.partials, 1000);
        for (const int at : {s.q, s.q_pitch, s.arrived, s.partials}) EXPECT_EQ(at % 16, 0);
      }
}

TEST(DecodePrefixSmem, FitsAndDoesNotOverlap) {
  for (const int dim : kDims) {
    const PrefixSmemPlan s = prefix_smem_plan(dim);
    EXPECT_LE(s.total, kSmemLimitSm90) << dim;
    EXPECT_EQ(s.half % 1024, 0);
    EXPECT_EQ(s.stage, 2 * dim * kSplitKeys);
    EXPECT_EQ(s.probs, s.stages * s.stage);
    EXPECT_GE(s.q - s.probs, kPrefixWarps * kGroupBlocks * kProbBytes);
    EXPECT_GE(s.row_sums - s.q, kPrefixRows * s.q_pitch);
    EXPECT_GE(kMaxRows * s.q_pitch, kGroupBlocks * kFactorBytes);  // in the place of Q
    EXPECT_GE(s.weights - s.row_sums, 8 * kGroupSplits * kPrefixRows);
    EXPECT_GE(s.full - s.weights, 4 * kGroupSplits * kPrefixRows);
    EXPECT_GE(s.empty - s.full, 8 * s.stages);
    EXPECT_GE(s.total - 1024 - s.empty, 8 * s.stages);
    for (const int at : {s.probs, s.q, s.q_pitch, s.row_sums, s.weights}) EXPECT_EQ(at % 16, 0);
    EXPECT_EQ(s.full % 8, 0);
    EXPECT_EQ(s.q_pitch, smem_plan(dim, kMaxRows).q_pitch);  // QueryFragments read it
  }
}

// Every partial result of a prefix has a slot of its own, behind those of the other work.
TEST(DecodePrefix, SlotsAreDistinct) {
  const SharedPrefix x{.max_groups = 5, .first_slot = 7};
  std::vector<int> slots;
  const int num_heads = 6;
  for (int head = 0; head < num_heads; ++head) {
    for (int group = 0; group < x.max_groups; ++group) slots.push_back(x.group_slot(head, group));
    for (int state = 0; state < kPrefixStates; ++state)
      slots.push_back(x.state_slot(num_heads, head, state));
  }
  std::ranges::sort(slots);
  for (std::size_t i = 0; i < slots.size(); ++i) EXPECT_EQ(slots[i], 7 + static_cast<int>(i));
  EXPECT_EQ(x.num_slots(num_heads), static_cast<std::int64_t>(slots.size()));
  EXPECT_EQ(SharedPrefix{}.num_slots(num_heads), 0);
}

TEST(DecodePrefix, IsLookedForWhereItPays) {
  Problem p = problem(1, 5000);
  p.batch = 64;
  p.num_kv_heads = 8;
  p.max_shared_prefix = 4500;
  const Window window = window_of(p);
  WorkPlan grid{}, clusters{};
  grid.num_slots = 100;
  clusters.cluster_size = 2;
  EXPECT_EQ(plan_prefix(p, window, grid).max_groups, 8);
  EXPECT_EQ(plan_prefix(p, window, grid).first_slot, 100);
  EXPECT_EQ(plan_prefix(p, window, clusters).max_groups, 0);
  EXPECT_EQ(plan_prefix(p, {.left = 4096, .right = 0, .is_top_left = false}, grid).max_groups, 0);
  for (const std::int64_t batch : {0, 1, kMaxPrefixBatch + 1}) {
    p.batch = batch;
    EXPECT_EQ(plan_prefix(p, window, grid).max_groups, 0) << batch;
  }
  p.batch = kMaxPrefixBatch;
  EXPECT_EQ(plan_prefix(p, window, grid).max_groups, 8);
  p.max_shared_prefix = 511;
  EXPECT_EQ(plan_prefix(p, window, grid).max_groups, 0);
  p.max_shared_prefix = p.seqlen_k = 1 << 28;  // more slots than an int counts
  p.num_kv_heads = 64;
  EXPECT_EQ(plan_prefix(p, window, grid).max_groups, 0);
}

TEST(DecodeWorkspace, HoldsEveryPartialResult) {
  for (const SequenceKeys& keys : kRanges)
    for (const bool is_uniform : {true, false})
      for (const std::int64_t heads : kBatchHeads)
        for (const int dim : kDims)
          for (const std::int64_t rows : {1, 7, 16})
            for (const int max_groups : {0, 3}) {
              const WorkPlan w = plan_work(grid_size(keys, is_uniform, heads), 132);
              const SharedPrefix prefix{.max_groups = max_groups, .first_slot = 0};
              const WorkspacePlan x = workspace_plan(w, prefix, heads, heads, rows, dim);
              const std::int64_t partial_rows = (w.num_slots + prefix.num_slots(heads)) * rows;
              EXPECT_GE(x.arrived, static_cast<std::int64_t>(sizeof(CounterWords)));
              EXPECT_GE(x.row_sums - x.arrived, 4 * (heads + w.num_slots));
              EXPECT_GE(x.o - x.row_sums, 8 * partial_rows);
              EXPECT_GE(x.slices - x.o, 4 * partial_rows * dim);
              EXPECT_GE(x.prefix_groups - x.slices, max_groups == 0 ? 0 : 16 * (heads + 1));
              EXPECT_GE(x.total - x.prefix_groups, max_groups == 0 ? 0 : 4 * heads);
              for (const std::int64_t at : {x.arrived, x.row_sums, x.o, x.slices, x.prefix_groups})
                EXPECT_EQ(at % kWorkspaceAlignment, 0);
            }
}

}  // namespace
}  // namespace headrace::cuda::sm90::decode
