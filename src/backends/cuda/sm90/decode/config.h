// Splits, work items, shared memory and workspace of the Hopper decode kernel: plain values, tested
// on the host.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "backends/cuda/common/constants.h"
#include "backends/cuda/sm90/call_counters.h"
#include "base/math.h"
#include "core/problem.h"

namespace headrace::cuda::sm90::decode {

// ---- Splits. Boundaries lie at multiples of these, whatever the lengths: the order of a row's
// sums depends on its first and last visible key alone.
inline constexpr int kBlockKeys = 16;    // of an mma; a TMA box has as many or a divisor of them
inline constexpr int kSplitKeys = 64;    // one warp sums them from zero, block by block
inline constexpr int kGroupSplits = 8;   // consecutive splits are merged as a group,
inline constexpr int kChunkGroups = 16;  // groups are appended to a chunk, chunks to the row
inline constexpr int kGroupKeys = kSplitKeys * kGroupSplits;
inline constexpr int kSplitBlocks = kSplitKeys / kBlockKeys;

// ---- A CTA: consumer warps, producer warps, warps that count and merge partial results. One
// producer warp needs 6 of the 8 microseconds that memory takes for a group: issuing a TMA box
// takes 45 instructions of one lane.
inline constexpr int kConsumerWarps = kGroupSplits;
inline constexpr int kConsumerThreads = 32 * kConsumerWarps;
inline constexpr int kProducerWarp = kConsumerWarps;  // the first
inline constexpr int kProducerWarps = 2;
inline constexpr int kFedWarps = kConsumerWarps / kProducerWarps;  // by a producer warp
inline constexpr int kMergeWarp = kProducerWarp + kProducerWarps;  // the first
inline constexpr int kMergeWarps = 2;
inline constexpr int kMergeThreads = 32 * kMergeWarps;
inline constexpr int kPartsAtOnce = 16;  // partial results that a merge warp appends at a time
inline constexpr int kThreads = kConsumerThreads + 32 * kProducerWarps + kMergeThreads;

inline constexpr int kMaxRows = 16;  // queries x heads of a group, backend.h's kMaxDecodeRows
inline constexpr int kMaxHeadDim = 128;
inline constexpr int kMaxSeqlen = 1 << 29;  // sums of two lengths fit 32 bits
inline constexpr std::int64_t kMaxItems = std::int64_t{1} << 30;
inline constexpr int kItemSlots = 2;  // items whose Q is in shared memory
inline constexpr int kItemBytes = 64;
// The warps that are no consumers count the batch. Its prefix sums in shared memory: an entry for
// one sequence, or for as many as a thread gets.
inline constexpr int kCountThreads = kThreads - kConsumerThreads;
inline constexpr int kBatchEntries = kCountThreads;
inline constexpr int kRowEntries = 256;  // of so few sequences it has the rows as well
// Rows, two prefix sums, four sums of each warp.
inline constexpr int kBatchBytes =
    kRowEntries * 16 + 2 * kBatchEntries * 4 + 4 * (kCountThreads / 32) * 4;
static_assert(kBatchBytes % 16 == 0);
inline constexpr std::int64_t kL2Bytes = 50 << 20;  // of an H100 and an H200

constexpr int head_dim_bucket(std::int64_t head_dim, std::int64_t head_dim_v) {
  return (head_dim > head_dim_v ? head_dim : head_dim_v) <= 64 ? 64 : 128;
}
constexpr int row_bucket(std::int64_t rows) { return rows <= 8 ? 8 : 16; }

// Bytes, and offsets in bytes. A ring of blocks for each consumer warp: stage s of warp w is block
// s * kConsumerWarps + w.
struct SmemPlan {
  int block;       // 16 keys of K or V: swizzle atoms of [16, 64]
  int stages;      // of a ring
  int merge_rows;  // rows of a group that are merged at a time
  int merge_pitch, q_pitch;
  int run_sums_bytes;  // 0: a thread has registers for its sums of a run
  int merge, run_sums, row_sums, q, items, batch, merge_pairs, ids, run_log2, full, empty,
      announced, item_full, item_empty, written, opened, is_last;
  int total;  // with room for a start at a multiple of 1024 bytes
};
constexpr SmemPlan smem_plan(int dim, int rows) {
  SmemPlan s{};
  s.block = kBlockKeys * dim * 2;
  s.merge_rows = 2 * kConsumerThreads / dim;
  s.run_sums_bytes = rows / s.merge_rows > 2 ? rows / s.merge_rows * kConsumerThreads * 16 : 0;
  s.stages = dim == 64 ? 12 : s.run_sums_bytes > 0 ? 5 : 6;  // 160 to 192 KiB in flight
  s.merge_pitch = (dim + 8) * 4;                             // rows begin 8 banks apart
  s.q_pitch = 2 * dim + 16;                                  // and rows of Q 4
  s.merge = s.stages * kConsumerWarps * s.block;
  s.run_sums = s.merge + kConsumerWarps * s.merge_rows * s.merge_pitch;
  s.row_sums = s.run_sums + s.run_sums_bytes;
  s.q = s.row_sums + kConsumerWarps * rows * 8;
  s.items = s.q + kItemSlots * rows * s.q_pitch;
  s.batch = s.items + kItemSlots * kItemBytes;
  s.merge_pairs = s.batch + kBatchBytes;
  s.ids = s.merge_pairs + kMergeWarps * kPartsAtOnce * 8;
  s.run_log2 = s.ids + kItemSlots * 4;
  s.full = s.run_log2 + 8;
  s.empty = s.full + s.stages * kConsumerWarps * 8;
  s.announced = s.empty + s.stages * kConsumerWarps * 8;
  s.item_full = s.announced + kItemSlots * 8;
  s.item_empty = s.item_full + kItemSlots * 8;
  s.written = s.item_empty + kItemSlots * 8;
  s.opened = s.written + kItemSlots * 8;
  s.is_last = s.opened + 8;
  s.total = s.is_last + 8 + 1024;
  return s;
}

// ---- Keys of a sequence

// Keys that a query sees on either side of its diagonal.
inline constexpr int kOpen = 1 << 30;
struct Window {
  int left, right;
  bool is_top_left;
};
constexpr Window window_of(const Problem& p) {
  const auto side = [](std::int64_t size) {
    return static_cast<int>(size < 0 || size > kOpen ? kOpen : size);
  };
  return {side(p.window_left), has_causal(p) ? 0 : side(p.window_right),
          p.causal == HEADRACE_CAUSAL_TOP_LEFT};
}

// Query q sees keys from left + q to before min(right + q, seqlen_k); [first_key, end_key) are
// those that any query sees, empty at 0 where none does.
struct SequenceKeys {
  int left, right, first_key, end_key;
};
constexpr SequenceKeys keys_of_sequence(const Window& window, int seqlen_q, int seqlen_k) {
  const int shift = window.is_top_left ? 0 : seqlen_k - seqlen_q;
  SequenceKeys s{shift - window.left, shift + window.right + 1, 0, 0};
  // The first and the last query that see a key.
  const int first = std::max(0, 1 - s.right);
  const int last = std::min(seqlen_q - 1, seqlen_k - 1 - s.left);
  if (first > last || seqlen_k == 0) return s;
  s.first_key = std::max(0, s.left + first);
  s.end_key = std::min(seqlen_k, s.right + last);
  return s;
}

// Groups, counted from key 0; at least one, since an item writes the rows.
struct GroupRange {
  int first, count;
};
constexpr GroupRange groups_of(const SequenceKeys& s) {
  const int first = s.first_key / kGroupKeys;
  return {first, std::max(s.end_key - 1, s.first_key) / kGroupKeys - first + 1};
}

// Splits, counted from key 0; at least one: a CTA writes the rows without keys, too.
struct SplitRange {
  int first, count;
};
constexpr SplitRange splits_of(const SequenceKeys& s) {
  const int first = s.first_key / kSplitKeys;
  return {first, std::max(s.end_key - 1, s.first_key) / kSplitKeys - first + 1};
}

// ---- Clusters: where there is little work, a cluster of CTAs has a (sequence, KV head). A warp
// sends the sums of a split to the CTAs of the cluster, each of which merges a share of the
// columns.
inline constexpr int kClusterWarpsLog2 = 3, kClusterWarps = 1 << kClusterWarpsLog2;  // of a CTA
inline constexpr int kMinClusterThreads = 128, kMaxClusterThreads = 32 * kClusterWarps;
inline constexpr int kMaxClusterSize = 8;  // that every Hopper GPU has
// With 6 the partial results of 4 rows, 8 x 48 splits x 4 x 72 bytes = 108 KiB, do not fit beside
// the ring.
inline constexpr int kMaxWarpSplits = 4;
inline constexpr int kGroupsOfThread = 4;  // that a thread appends; a warp appends more at once
inline constexpr int kMaxRingBytes = 128 * 1024;      // of the blocks in flight
inline constexpr int kSplitLoads = 2 * kSplitBlocks;  // K and V of a split's blocks

// The warps with splits share a ring of blocks: the fewer they are, the more has each in flight.
struct ClusterSmemPlan {
  int block, q_pitch;
  int q, arrived, partials;
  int total;  // with room for a start at a multiple of 1024 bytes
};
// Log2 of the blocks of the ring: at least four for each warp.
constexpr int cluster_ring_log2(int dim, int splits_of_cta) {
  const int most = kMaxRingBytes / (kBlockKeys * dim * 2);
  const int blocks = std::min(most, kSplitLoads * std::max(splits_of_cta, 1));
  return std::bit_width(static_cast<unsigned>(blocks)) - 1;
}
// Bytes of a row of a split in a CTA of the cluster: its columns, and (maximum, sum).
constexpr int partial_pitch(int dim, int cluster_size) { return 4 * dim / cluster_size + 8; }
constexpr ClusterSmemPlan cluster_smem_plan(int dim, int rows, int ring_log2, int partial_bytes) {
  ClusterSmemPlan s{};
  s.block = kBlockKeys * dim * 2;
  s.q_pitch = 2 * dim + 16;
  s.q = s.block << ring_log2;
  s.arrived = s.q + rows * s.q_pitch;
  s.partials = s.arrived + 16;
  s.total = s.partials + partial_bytes + 1024;
  return s;
}

// ---- Equal shares: up to some groups for each CTA, all groups of the call stand in a line, of
// which each CTA has an equal share.
inline constexpr int kShareWarps = kGroupSplits;  // with a split of a group each
inline constexpr int kShareThreads = 32 * kShareWarps;
inline constexpr int kMaxShareBatch = kShareThreads;  // a thread has a sequence
// Longer shares take longer than the items of a persistent grid, of which fast multiprocessors take
// more.
inline constexpr int kMaxShareGroups = 16;

// What a group costs, in splits: its own, and what it takes whatever it has.
inline constexpr int kGroupCost = 2, kWholeGroupCost = kGroupSplits + kGroupCost;
// A share may have as many segments as groups of one split, all of which begin within its cost.
inline constexpr int kMaxSegments = 64;
static_assert((kMaxShareGroups + 1) * kWholeGroupCost / (1 + kGroupCost) + 1 <= kMaxSegments);

// A ring of blocks for each warp; O, maxima and sums of the splits of a group.
struct ShareSmemPlan {
  int block, stages_log2, q_pitch, o_pitch;
  int q, o, row_sums, running, segments, words;
  int total;  // with room for a start at a multiple of 1024 bytes
};
constexpr ShareSmemPlan share_smem_plan(int dim, int rows) {
  ShareSmemPlan s{};
  s.block = kBlockKeys * dim * 2;
  s.stages_log2 = std::bit_width(static_cast<unsigned>(kMaxRingBytes / kShareWarps / s.block)) - 1;
  s.q_pitch = 2 * dim + 16;
  s.o_pitch = 4 * dim + 16;  // rows begin 4 banks apart
  s.q = (kShareWarps * s.block) << s.stages_log2;
  s.o = s.q + rows * s.q_pitch;
  s.row_sums = s.o + kGroupSplits * rows * s.o_pitch;
  s.running = s.row_sums + kGroupSplits * rows * 8;
  s.segments = s.running + rows * dim / 2 * 16;
  s.words = s.segments + kMaxSegments * kItemBytes;
  s.total = s.words + (kShareWarps + 2) * 4 + 1024;
  return s;
}
// Threads of a CTA that appends the groups of a row: two warps of a head_dim of 128, or one, for
// each chunk, up to eight.
inline constexpr int kMaxAppendThreads = 512;
constexpr int append_threads(int dim, int share_slots) {
  const int chunks = ceil_div(share_slots, kChunkGroups) + 1;  // a window may begin in a chunk
  return dim / 2 * std::min(chunks, kMaxAppendThreads / (dim / 2));
}

// ---- Work: what a CTA of the persistent grid takes at a time of one (sequence, KV head): a run of
// up to 1, 2, 4, 8 or 16 groups that begins at a multiple of that. Where the head has other runs,
// partial results are groups, or chunks where a run is one.

// Log2 of the groups of a run: as long as leaves one for each multiprocessor. An item costs about 2
// us that loads do not hide; with three for each, 1 x 131072 takes 141 us instead of 131.
inline constexpr int kChunkLog2 = 4, kRunsPerUnit = 1;
static_assert(1 << kChunkLog2 == kChunkGroups);
constexpr int choose_run(std::int64_t total_groups, int num_units) {
  int log2 = 0;
  while (log2 < kChunkLog2 && total_groups >= (std::int64_t{kRunsPerUnit} * num_units) << log2)
    ++log2;
  return log2;
}
// The most groups of a batch whose runs are shorter than chunks.
constexpr std::int64_t max_short_run_groups(int num_units) {
  return (std::int64_t{kRunsPerUnit} * num_units) << (kChunkLog2 - 1);
}

// Items of a head, and its partial results: none where an item is the whole head.
struct HeadWork {
  int num_items, num_slots;
};
constexpr HeadWork head_work(const SequenceKeys& s, int run_log2) {
  const GroupRange groups = groups_of(s);
  const int items =
      ((groups.first + groups.count - 1) >> run_log2) - (groups.first >> run_log2) + 1;
  if (items == 1) return {1, 0};
  return {items, run_log2 == kChunkLog2 ? items : groups.count};
}

struct WorkPlan {
  int cluster_size;  // CTAs of a head; 0: no clusters
  int cluster_threads, cluster_ring_log2, cluster_smem_bytes;
  int share_slots;  // partial results of a head, at most; 0: no equal shares
  // Shares write the rows of heads that they have alone; the second kernel has the others.
  bool has_cut_heads;
  // A persistent grid, where there is neither:
  // The lengths are known: all sequences have the same keys. Otherwise the kernel reads lengths,
  // chooses the run and counts items, of which these are upper bounds.
  bool is_uniform;
  int run_log2;
  HeadWork head;  // uniform only
  std::int64_t num_items, num_slots;
};

// `longest`: keys of the longest sequence that there may be. A shorter one with a window may begin
// elsewhere in a unit, and so touch one more.
constexpr int most_units(const SequenceKeys& longest, int size) {
  const int keys = longest.end_key - longest.first_key;
  return std::max(1, std::min(ceil_div(longest.end_key, size), (keys + size - 2) / size + 1));
}
// The call without its tensors.
struct WorkSize {
  SequenceKeys longest;
  bool is_uniform;
  std::int64_t batch_heads;  // batch * KV heads
  int rows, dim;             // of a head; head_dim_bucket()
  std::int64_t batch = 1;
  bool may_share_prefix = false;  // of which the persistent grid has the rest
  // Of a TuningConfig: a cluster, or a persistent grid with runs of this length. 0: chosen here.
  int cluster_size = 0, run_groups = 0;
};
inline constexpr int kEqualShares = 2 * kChunkGroups;  // as run_groups: no run is as long

// Shared memory of a CTA of such a cluster, which holds its columns of all partial results.
constexpr std::int64_t cluster_smem_bytes(const WorkSize& x, int size) {
  const std::int64_t splits = most_units(x.longest, kSplitKeys);
  const std::int64_t partials = splits * x.rows * partial_pitch(x.dim, size);
  const int ring_log2 = cluster_ring_log2(x.dim, ceil_div(static_cast<int>(splits), size));
  return cluster_smem_plan(x.dim, row_bucket(x.rows), ring_log2, 0).total + partials;
}
constexpr bool fits_cluster(const WorkSize& x, int size) {
  return cluster_smem_bytes(x, size) <= kSmemLimitSm90;
}

// CTAs of clusters of this size that run at the same time, one on each multiprocessor: a cluster
// lies in one GPC, and 132 multiprocessors hold 66, 30 and 15 clusters of 2, 4 and 8.
constexpr std::int64_t cluster_units(int size, int num_units) {
  return size <= 2 ? num_units : std::int64_t{num_units} * 10 / 11;
}
// As many CTAs as run at the same time, none without a split. 0: too much work.
constexpr int choose_cluster(const WorkSize& x, int num_units) {
  const int splits = most_units(x.longest, kSplitKeys);
  int size = kMaxClusterSize;
  while (size > 1 && (x.batch_heads * size > cluster_units(size, num_units) || size / 2 >= splits))
    size /= 2;
  const bool takes = x.batch_heads <= num_units &&
                     ceil_div(splits, size) <= kClusterWarps * kMaxWarpSplits &&
                     fits_cluster(x, size);
  return takes ? size : 0;
}

// Groups of the call, at most.
constexpr std::int64_t most_groups(const WorkSize& x) {
  return x.batch_heads *
         (x.is_uniform ? groups_of(x.longest).count : most_units(x.longest, kGroupKeys));
}
constexpr bool fits_shares(const WorkSize& x, int num_units) {
  return x.batch <= kMaxShareBatch && !x.may_share_prefix &&
         most_groups(x) <= std::int64_t{kMaxShareGroups} * num_units;
}
// A cluster needs no second kernel, but may leave multiprocessors idle.
constexpr bool chooses_shares(const WorkSize& x, int cluster_size, int num_units) {
  if (!fits_shares(x, num_units)) return false;
  return cluster_size == 0 ||
         ceil_div<std::int64_t>(most_groups(x), num_units) <
             ceil_div(most_units(x.longest, kSplitKeys), cluster_size * kClusterWarps);
}

constexpr WorkPlan plan_work(const WorkSize& x, int num_units) {
  WorkPlan w{};
  w.is_uniform = x.is_uniform;
  const bool is_chosen = x.cluster_size + x.run_groups > 0;
  const int cluster_size = is_chosen ? x.cluster_size : choose_cluster(x, num_units);
  const bool has_shares =
      is_chosen ? x.run_groups == kEqualShares : chooses_shares(x, cluster_size, num_units);
  w.cluster_size = has_shares ? 0 : cluster_size;
  if (w.cluster_size > 0) {
    w.num_items = x.batch_heads * w.cluster_size;
    const int splits_of_cta = ceil_div(most_units(x.longest, kSplitKeys), w.cluster_size);
    w.cluster_threads =
        32 * splits_of_cta <= kMinClusterThreads ? kMinClusterThreads : kMaxClusterThreads;
    w.cluster_ring_log2 = cluster_ring_log2(x.dim, splits_of_cta);
    w.cluster_smem_bytes = static_cast<int>(cluster_smem_bytes(x, w.cluster_size));
    return w;
  }
  const std::int64_t total = most_groups(x);
  if (has_shares) {
    w.share_slots = static_cast<int>(total / x.batch_heads);
    w.num_items = std::min<std::int64_t>(total, num_units);
    w.num_slots = total;
    w.has_cut_heads = x.batch_heads > w.num_items;
    return w;
  }
  w.run_log2 = x.run_groups > 0 ? std::bit_width(static_cast<unsigned>(x.run_groups)) - 1
                                : choose_run(total, num_units);
  w.head = head_work(x.longest, w.run_log2);
  w.num_items = w.head.num_items * x.batch_heads;
  w.num_slots = w.head.num_slots * x.batch_heads;
  if (x.is_uniform) return w;
  const auto most = [&](int size) { return most_units(x.longest, size) * x.batch_heads; };
  w.num_items = most(kGroupKeys);
  w.num_slots =
      std::max(std::min(total, max_short_run_groups(num_units)), most(kGroupKeys * kChunkGroups));
  return w;
}

// ---- Shared prefixes: groups of keys that neighbouring sequences have in the same pages are read
// once for all of them (prefix.cuh).
inline constexpr int kMaxPrefixBatch = 1024;  // one cluster looks for them
inline constexpr int kPrefixWarps = 8;        // of attend_prefix, with 16 rows each: two warpgroups
inline constexpr int kPrefixRows = kPrefixWarps * kMaxRows;
inline constexpr int kPrefixStates = 2;  // of a row: its whole chunks, the groups behind them
struct SharedPrefix {
  int max_groups;  // 0: none are looked for
  int first_slot;  // partial results of (head, group), then of (head, state)

  constexpr int group_slot(int head_idx, int group) const {
    return first_slot + head_idx * max_groups + group;
  }
  constexpr int state_slot(int num_heads, int head_idx, int state) const {
    return first_slot + num_heads * max_groups + head_idx * kPrefixStates + state;
  }
  constexpr std::int64_t num_slots(std::int64_t num_heads) const {
    return max_groups == 0 ? 0 : num_heads * (max_groups + kPrefixStates);
  }
};
constexpr int max_prefix_groups(const Problem& p, const Window& window) {
  if (window.left != kOpen || p.batch < 2 || p.batch > kMaxPrefixBatch) return 0;
  return static_cast<int>(std::min(p.max_shared_prefix, p.seqlen_k) / kGroupKeys);
}
// Clusters are left alone: three more kernels take longer than all of their work.
constexpr SharedPrefix plan_prefix(const Problem& p, const Window& window, const WorkPlan& work) {
  SharedPrefix x{};
  const int groups = max_prefix_groups(p, window);
  if (work.cluster_size > 0 || work.share_slots > 0 || groups == 0) return x;
  const std::int64_t heads = p.batch * p.num_kv_heads;
  if (work.num_slots + saturating_product({heads, groups + kPrefixStates}) > kMaxItems) return x;
  return {groups, static_cast<int>(work.num_slots)};
}

// Bytes, and offsets in bytes, of attend_prefix: a ring of splits of K, then of V, and P of a
// group.
inline constexpr int kGroupBlocks = kGroupKeys / kBlockKeys;
inline constexpr int kProbBytes = kBlockKeys * kMaxRows * 2;  // of a warp and block, as fragments
inline constexpr int kFactorBytes = kMaxRows * 4;             // of a warp and block
struct PrefixSmemPlan {
  int half, stage;  // a split of K or V: [dim / 64] operands of [64 keys, 64 dims]
  int stages, q_pitch;
  int probs, q, row_sums, weights, full, empty;
  int total;  // with room for a start at a multiple of 1024 bytes
};
constexpr PrefixSmemPlan prefix_smem_plan(int dim) {
  PrefixSmemPlan s{};
  s.half = kSplitKeys * 64 * 2;
  s.stage = dim / 64 * s.half;
  s.stages = dim == 64 ? 6 : 3;
  s.q_pitch = 2 * dim + 16;
  s.probs = s.stages * s.stage;
  s.q = s.probs + kPrefixWarps * kGroupBlocks * kProbBytes;
  s.row_sums = s.q + kPrefixRows * s.q_pitch;
  s.weights = s.row_sums + kGroupSplits * kPrefixRows * 8;
  s.full = s.weights + kGroupSplits * kPrefixRows * 4;
  s.empty = s.full + s.stages * 8;
  s.total = s.empty + s.stages * 8 + 1024;
  return s;
}

// ---- Workspace

inline constexpr std::int64_t kWorkspaceAlignment = 16;

// Offsets in bytes. Heads are counted, and chunks by their first slot.
struct WorkspacePlan {
  std::int64_t arrived, row_sums, o, cut_heads, slices, prefix_groups, total;
};
constexpr WorkspacePlan workspace_plan(const WorkPlan& w, const SharedPrefix& prefix,
                                       std::int64_t batch, std::int64_t batch_heads,
                                       std::int64_t rows, int dim) {
  WorkspacePlan x{};
  const std::int64_t partial_rows =
      saturating_product({w.num_slots + prefix.num_slots(batch_heads), rows});
  const std::int64_t counters = batch_heads + w.num_slots;
  x.arrived = sizeof(CounterWords);
  x.row_sums = x.arrived + round_up<std::int64_t>(counters * 4, kWorkspaceAlignment);
  x.o = x.row_sums +
        round_up<std::int64_t>(saturating_product({partial_rows, 8}), kWorkspaceAlignment);
  x.cut_heads = x.o + saturating_product({partial_rows, dim, 4});
  x.slices = x.cut_heads +
             (w.has_cut_heads ? round_up<std::int64_t>(w.num_items * 4, kWorkspaceAlignment) : 0);
  x.prefix_groups = x.slices + (prefix.max_groups > 0 ? (batch + 1) * 16 : 0);
  x.total = x.prefix_groups + (prefix.max_groups > 0 ? batch * 4 : 0);
  return x;
}

}  // namespace headrace::cuda::sm90::decode
