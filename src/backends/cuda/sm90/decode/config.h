// Splits, work items, shared memory and workspace of the Hopper decode kernel: plain values, tested
// on the host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cuda/common/constants.h"
#include "base/math.h"
#include "core/problem.h"

namespace headrace::cuda::sm90::decode {

// ---- Splits. Boundaries lie at multiples of these, whatever the lengths: the order of a row's
// sums depends on its first and last visible key alone.
inline constexpr int kBlockKeys = 16;   // of a TMA box and an mma
inline constexpr int kSplitKeys = 64;   // one warp sums them from zero, block by block
inline constexpr int kGroupSplits = 8;  // consecutive splits are merged as a group,
inline constexpr int kChunkGroups =
    4;  // consecutive groups as a chunk, chunks in the order of keys
inline constexpr int kGroupKeys = kSplitKeys * kGroupSplits;
inline constexpr int kSplitBlocks = kSplitKeys / kBlockKeys;

// ---- A CTA: consumer warps, one producer warp, warps that count and merge partial results.
inline constexpr int kConsumerWarps = kGroupSplits;
inline constexpr int kConsumerThreads = 32 * kConsumerWarps;
inline constexpr int kProducerWarp = kConsumerWarps;
inline constexpr int kMergeWarps = 3;
inline constexpr int kMergeThreads = 32 * kMergeWarps;
inline constexpr int kThreads = kConsumerThreads + 32 + kMergeThreads;

inline constexpr int kMaxRows = 16;  // queries x heads of a group
inline constexpr int kMaxHeadDim = 128;
inline constexpr int kMaxSeqlen = 1 << 29;  // sums of two lengths fit 32 bits
inline constexpr std::int64_t kMaxItems = std::int64_t{1} << 30;
inline constexpr int kItemSlots = 2;  // items whose Q is in shared memory

constexpr int head_dim_bucket(std::int64_t head_dim, std::int64_t head_dim_v) {
  return (head_dim > head_dim_v ? head_dim : head_dim_v) <= 64 ? 64 : 128;
}
constexpr int row_bucket(std::int64_t rows) { return rows <= 8 ? 8 : 16; }

// Bytes, and offsets in bytes. A ring of blocks for each consumer warp: stage s of warp w is block
// s
// * kConsumerWarps + w.
struct SmemPlan {
  int block;       // 16 keys of K or V: swizzle atoms of [16, 64]
  int stages;      // of a ring
  int merge_rows;  // rows of a group that are merged at a time
  int merge_pitch, q_pitch;
  int run_sums_bytes;  // 0: a thread has registers for its sums of a run
  int merge, run_sums, row_sums, q, full, empty, item_full, item_empty, written, opened, items,
      is_last;
  int total;  // with room for a start at a multiple of 1024 bytes
};
constexpr SmemPlan smem_plan(int dim, int rows) {
  SmemPlan s{};
  s.block = kBlockKeys * dim * 2;
  s.merge_rows = 2 * kConsumerThreads / dim;
  s.run_sums_bytes = rows / s.merge_rows > 2 ? rows / s.merge_rows * 2 * kConsumerThreads * 16 : 0;
  s.stages = dim == 64 ? 12 : s.run_sums_bytes > 0 ? 5 : 6;  // 160 to 192 KiB in flight
  s.merge_pitch = (dim + 8) * 4;                             // rows begin 8 banks apart
  s.q_pitch = 2 * dim + 16;                                  // and rows of Q 4
  s.merge = s.stages * kConsumerWarps * s.block;
  s.run_sums = s.merge + kConsumerWarps * s.merge_rows * s.merge_pitch;
  s.row_sums = s.run_sums + s.run_sums_bytes;
  s.q = s.row_sums + kConsumerWarps * rows * 8;
  s.full = s.q + kItemSlots * rows * s.q_pitch;
  s.empty = s.full + s.stages * kConsumerWarps * 8;
  s.item_full = s.empty + s.stages * kConsumerWarps * 8;
  s.item_empty = s.item_full + kItemSlots * 8;
  s.written = s.item_empty + kItemSlots * 8;
  s.opened = s.written + kItemSlots * 8;
  s.items = s.opened + 8;
  s.is_last = s.items + kItemSlots * 4;
  s.total = s.is_last + 4 + 1024;
  return s;
}

// ---- Work

// The keys [begin, end) that any row of a sequence sees; empty at 0 where no row sees a key.
constexpr KeyRange union_of_visible_keys(const Problem& p) {
  KeyRange all{p.seqlen_k, 0};
  for (std::int64_t q_idx = 0; q_idx < p.seqlen_q; ++q_idx) {
    const KeyRange keys = visible_keys(p, q_idx, p.seqlen_q, p.seqlen_k);
    if (keys.begin == keys.end) continue;
    all = {keys.begin < all.begin ? keys.begin : all.begin,
           keys.end > all.end ? keys.end : all.end};
  }
  return all.begin < all.end ? all : KeyRange{0, 0};
}

enum class ItemKind { split, run };
enum class PartialKind { split, group, chunk };
constexpr int keys_of(PartialKind kind) {
  if (kind == PartialKind::split) return kSplitKeys;
  return kind == PartialKind::group ? kGroupKeys : kGroupKeys * kChunkGroups;
}

// What a CTA takes at a time of one (sequence, KV head), and what it leaves in the workspace.
// Numbers of splits, groups and chunks count from key 0.
struct WorkPlan {
  int first_key, end_key;  // that any row sees
  int num_groups;          // first_key / kGroupKeys and the next
  ItemKind item_kind;
  int run_groups;                  // groups of a run
  int first_item, items_per_head;  // splits, or runs at multiples of run_groups
  PartialKind partial_kind;
  int first_partial, partials_per_head;  // 0: an item is a whole head, nothing is left
  std::int64_t num_items;
};

// Items as small as single splits where one for each half of a multiprocessor does not come about
// otherwise; else runs as long as leave some for each multiprocessor.
constexpr WorkPlan plan_work(KeyRange keys, std::int64_t batch_heads, int num_units) {
  constexpr int kMaxRun = 16, kRunsPerUnit = 3;
  WorkPlan w{};
  w.first_key = static_cast<int>(keys.begin);
  w.end_key = static_cast<int>(keys.end);
  const auto units = [&](int size) {  // that hold a key; at least one
    return (w.end_key > w.first_key ? w.end_key - 1 : w.first_key) / size - w.first_key / size + 1;
  };
  w.num_groups = units(kGroupKeys);
  const std::int64_t total = w.num_groups * batch_heads;
  const auto leave = [&](PartialKind kind) {
    w.partial_kind = kind;
    w.first_partial = w.first_key / keys_of(kind);
    w.partials_per_head = units(keys_of(kind));
  };
  if (2 * total <= num_units) {
    w.item_kind = ItemKind::split;
    w.first_item = w.first_key / kSplitKeys;
    w.items_per_head = units(kSplitKeys);
    leave(PartialKind::split);
  } else {
    w.item_kind = ItemKind::run;
    w.run_groups = 1;
    while (w.run_groups < kMaxRun && total >= std::int64_t{kRunsPerUnit} * w.run_groups * num_units)
      w.run_groups *= 2;
    w.first_item = w.first_key / (kGroupKeys * w.run_groups);
    w.items_per_head = units(kGroupKeys * w.run_groups);
    if (w.items_per_head > 1)
      leave(w.run_groups < kChunkGroups ? PartialKind::group : PartialKind::chunk);
  }
  w.num_items = w.items_per_head * batch_heads;
  return w;
}

// ---- Workspace

inline constexpr std::int64_t kWorkspaceAlignment = 16;

// counters.cuh says how a call makes them its own.
struct CounterWords {
  unsigned long long mark;
  int next_item, num_closed;
};

// Offsets in bytes. Where items are splits each 16 columns of a row have a counter, and a copy of
// the row's (maximum, sum), of their own.
struct WorkspacePlan {
  std::int64_t arrived, num_arrived, row_sums, o, total;
  int copies;
};
constexpr WorkspacePlan workspace_plan(const WorkPlan& w, std::int64_t batch_heads,
                                       std::int64_t rows, int dim) {
  WorkspacePlan x{};
  x.copies = w.item_kind == ItemKind::split ? dim / 16 : 1;
  x.num_arrived = w.partials_per_head > 0 ? batch_heads * x.copies : 0;
  const std::int64_t partial_rows = saturating_product({batch_heads, w.partials_per_head, rows});
  x.arrived = sizeof(CounterWords);
  x.row_sums = x.arrived + round_up<std::int64_t>(x.num_arrived * 4, kWorkspaceAlignment);
  x.o = x.row_sums + round_up<std::int64_t>(saturating_product({partial_rows, x.copies, 8}),
                                            kWorkspaceAlignment);
  x.total = x.o + saturating_product({partial_rows, dim, 4});
  return x;
}

}  // namespace headrace::cuda::sm90::decode
