// The work of a batch: which part of which sequence an item is. Lengths that the host does not know
// are read here, so that a captured graph serves other lengths.
#pragma once

#include "backends/cuda/common/lengths.cuh"
#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/device/tma.cuh"
#include "backends/cuda/sm90/decode/params.h"
#include "backends/cuda/sm90/element.cuh"
#include "backends/cuda/sm90/shared.cuh"

namespace headrace::cuda::sm90::decode {

// Which part of the problem an item is; batch_idx -1: there are no further items.
struct alignas(16) Item {
  int batch_idx, kv_head;
  int first, end;  // groups, counted from key 0
  int seqlen_q, seqlen_k, row_q, row_k;
  int left, right, first_key, end_key;     // SequenceKeys
  int first_group, num_groups, num_items;  // of the head
  int slot;                                // of the head's first partial result

  static constexpr int kRehearsal = -1;  // as slot: see announce_rehearsal()
  __device__ bool is_rehearsal() const { return slot == kRehearsal; }
  __device__ int head_idx(const Params& p) const { return batch_idx * p.num_kv_heads + kv_head; }
  // Consumes all of its words, for released_behind().
  __device__ u32 loaded() const { return loaded_head() ^ xor_of(left, right, first_key, end_key); }
  __device__ u32 loaded_head() const {
    return xor_of(batch_idx, kv_head, first, end) ^ xor_of(seqlen_q, seqlen_k, row_q, row_k) ^
           xor_of(first_group, num_groups, num_items, slot);
  }
  __device__ int rows(const Params& p) const { return seqlen_q * p.group; }
  __device__ SequenceKeys keys() const { return {left, right, first_key, end_key}; }
  // Whether partial results of the keys before its first group are in the workspace: without a
  // window, as shared prefixes have none, other heads begin at group 0.
  __device__ bool has_prefix(const Params& p) const {
    return p.prefix_groups != nullptr && first_group > 0;
  }
  // Whether any row sees a key of the block.
  __device__ bool sees_block(int key) const {
    return key < end_key && key + kBlockKeys > first_key;
  }

 private:
  __device__ static u32 xor_of(int a, int b, int c, int d) {
    return static_cast<u32>(a ^ b ^ c ^ d);
  }
};
static_assert(sizeof(Item) == kItemBytes);

__device__ __forceinline__ void store_item(u32 address, const Item& x) {
  const auto store = [&](int i, int a, int b, int c, int d) {
    store_chunk(address + 16 * i, {{static_cast<u32>(a), static_cast<u32>(b), static_cast<u32>(c),
                                    static_cast<u32>(d)}});
  };
  store(0, x.batch_idx, x.kv_head, x.first, x.end);
  store(1, x.seqlen_q, x.seqlen_k, x.row_q, x.row_k);
  store(2, x.left, x.right, x.first_key, x.end_key);
  store(3, x.first_group, x.num_groups, x.num_items, x.slot);
}
__device__ __forceinline__ void load_keys(u32 address, Item& x) {
  const Chunk c = load_chunk(address + 32);
  x.left = static_cast<int>(c.words[0]);
  x.right = static_cast<int>(c.words[1]);
  x.first_key = static_cast<int>(c.words[2]);
  x.end_key = static_cast<int>(c.words[3]);
}
// All but its keys.
__device__ __forceinline__ Item load_head(u32 address) {
  const Chunk place = load_chunk(address), rows = load_chunk(address + 16);
  const Chunk head = load_chunk(address + 48);
  const auto word = [](const Chunk& c, int i) { return static_cast<int>(c.words[i]); };
  return {.batch_idx = word(place, 0),
          .kv_head = word(place, 1),
          .first = word(place, 2),
          .end = word(place, 3),
          .seqlen_q = word(rows, 0),
          .seqlen_k = word(rows, 1),
          .row_q = word(rows, 2),
          .row_k = word(rows, 3),
          .first_group = word(head, 0),
          .num_groups = word(head, 1),
          .num_items = word(head, 2),
          .slot = word(head, 3)};
}
__device__ __forceinline__ Item load_item(u32 address) {
  Item x = load_head(address);
  load_keys(address, x);
  return x;
}

struct SequenceRows {
  int seqlen_q, seqlen_k, row_q, row_k;
};
__device__ inline SequenceRows rows_of(const Params& p, int batch_idx, bool reports) {
  const Sequence s = sequence_with_used_keys(p.sizes, p.lengths, p.used_keys, batch_idx, reports);
  return {static_cast<int>(s.seqlen_q), static_cast<int>(s.seqlen_k), static_cast<int>(s.row_q),
          static_cast<int>(s.row_k)};
}

// The keys of a sequence that items have: those behind the groups that attend_prefix computed.
__device__ __forceinline__ SequenceKeys keys_of_items(const Params& p, int batch_idx,
                                                      const SequenceRows& rows) {
  SequenceKeys keys = keys_of_sequence(p.window, rows.seqlen_q, rows.seqlen_k);
  if (p.prefix_groups != nullptr)
    keys.first_key = max(keys.first_key, kGroupKeys * __ldcg(p.prefix_groups + batch_idx));
  return keys;
}

// A (sequence, KV head) with its rows and keys, and no groups.
__device__ __forceinline__ Item item_of_head(int batch_idx, int kv_head, const SequenceRows& rows,
                                             const SequenceKeys& keys) {
  return {.batch_idx = batch_idx,
          .kv_head = kv_head,
          .seqlen_q = rows.seqlen_q,
          .seqlen_k = rows.seqlen_k,
          .row_q = rows.row_q,
          .row_k = rows.row_k,
          .left = keys.left,
          .right = keys.right,
          .first_key = keys.first_key,
          .end_key = keys.end_key};
}
__device__ __forceinline__ Item item_of_head(const Params& p, int batch_idx, int kv_head,
                                             const SequenceRows& rows) {
  return item_of_head(
      batch_idx, kv_head, rows,
      p.work.is_uniform ? p.keys : keys_of_sequence(p.window, rows.seqlen_q, rows.seqlen_k));
}
__device__ __forceinline__ SequenceRows rows_of_item(const Params& p, int batch_idx, bool reports) {
  if (!p.work.is_uniform) return rows_of(p, batch_idx, reports);
  return {static_cast<int>(p.sizes.seqlen_q), static_cast<int>(p.sizes.seqlen_k), 0, 0};
}
// The first pages of a sequence and of the one before it: where they are the same, the two share a
// prefix.
struct FirstPages {
  int own = -1, before = -2;
  __device__ bool are_same() const { return own == before; }
};
__device__ __forceinline__ FirstPages first_pages(const Params& p, int batch_idx,
                                                  const SequenceKeys& keys) {
  if (p.pages.block_table == nullptr || batch_idx == 0 || keys.end_key == 0) return {};
  const auto first_page = [&](int i) { return p.pages.page_of(i, first_entry(p.used_keys, i), 0); };
  return {first_page(batch_idx), first_page(batch_idx - 1)};
}
// Whether K and V of so many groups fit L2.
template <int kDim>
__device__ __forceinline__ bool fits_l2(std::int64_t num_groups) {
  return num_groups * (kGroupKeys * kDim * 2 * 2) <= kL2Bytes;
}
// Keys that are read once leave L2 before the partial results.
__device__ __forceinline__ u64 policy_of_keys(bool stay) {
  return stay ? kEvictNormal : kEvictFirst;
}
// Head `head_idx` of all; the first of a sequence reports its lengths.
__device__ __forceinline__ Item item_of_head(const Params& p, int head_idx, bool reports) {
  const int batch_idx = p.by_kv_heads.divide(head_idx);
  const int kv_head = head_idx - batch_idx * p.num_kv_heads;
  return item_of_head(p, batch_idx, kv_head, rows_of_item(p, batch_idx, reports && kv_head == 0));
}

__device__ inline int warp_inclusive_sum(int x, int lane) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int below = __shfl_up_sync(0xffffffffu, x, step);
    if (lane >= step) x += below;
  }
  return x;
}

// Named barriers: of the consumers, of the merge warps, of those that count the batch, of those
// that rehearse merging.
inline constexpr int kConsumerBarrier = 1, kMergeBarrier = 2, kCountBarrier = 3,
                     kRehearsalBarrier = 4;

// The items of a persistent grid.
class Batch {
 public:
  // `smem`: of kBatchBytes. All threads that count call it; it synchronises them where lengths are
  // on the device.
  __device__ Batch(const Params& p, u32 smem) : p_(p), smem_(smem) {
    if (p.work.is_uniform) {
      run_log2_ = p.work.run_log2;
      num_items_ = static_cast<int>(p.work.num_items);
      num_slots_ = static_cast<int>(p.work.num_slots);
      num_groups_ = std::int64_t{groups_of(p.keys).count} * p.batch * p.num_kv_heads;
      shares_pages_ = p.pages.block_table != nullptr;  // tables are not compared
    } else {
      count();
    }
  }

  __device__ int run_log2() const { return run_log2_; }
  __device__ int num_items() const { return num_items_; }
  __device__ int num_slots() const { return num_slots_; }
  template <int kDim>
  __device__ u64 policy() const {
    return policy_of_keys(shares_pages_ || fits_l2<kDim>(num_groups_));
  }

  // By one warp. The first runs of all heads come first, so that most items of most batches are
  // found without a search. The heads of the same keys are consecutive items: with heads side by
  // side in memory, CTAs read neighbouring rows at the same time.
  __device__ Item find(int id, int lane) const {
    const int num_heads = p_.batch * p_.num_kv_heads;
    const bool is_first_run = id < num_heads;
    if (!is_first_run) id -= num_heads;
    const int rest = p_.by_kv_heads.divide(id), kv_head = id - rest * p_.num_kv_heads;
    Place at{rest, 0, 0};
    if (!is_first_run) at = find_later(rest, lane);
    SequenceRows rows;
    SequenceKeys keys;
    HeadWork work;
    if (p_.work.is_uniform) {
      work = p_.work.head;
      rows = rows_of_item(p_, at.batch_idx, false);
      keys = p_.keys;
    } else {
      rows = known_rows(at.batch_idx);
      keys = keys_of_items(p_, at.batch_idx, rows);
      work = head_work(keys, run_log2_);
    }
    if (is_first_run && work.num_slots > 0) at.slots_before = slots_before(rest, lane);
    const GroupRange groups = groups_of(keys);
    Item item = item_of_head(at.batch_idx, kv_head, rows, keys);
    item.first_group = groups.first;
    item.num_groups = groups.count;
    item.num_items = work.num_items;
    item.slot = at.slots_before * p_.num_kv_heads + kv_head * work.num_slots;
    const int run = is_first_run ? 0 : rest - at.later_before + 1;
    const int begin = ((groups.first >> run_log2_) + run) << run_log2_;
    item.first = max(begin, groups.first);
    item.end = min(begin + (1 << run_log2_), groups.first + groups.count);
    return item;
  }

 private:
  static constexpr int kWarps = kCountThreads / 32;
  struct Place {
    int batch_idx, later_before, slots_before;  // of one head each
  };

  __device__ HeadWork work_of(int batch_idx) const {
    return head_work(keys_of_items(p_, batch_idx, known_rows(batch_idx)), run_log2_);
  }
  // Whether the rows of each sequence are in shared memory.
  __device__ bool has_rows() const { return p_.batch <= kRowEntries; }
  __device__ u32 rows_chunk(int batch_idx) const {
    return smem_ + 16 * static_cast<u32>(batch_idx);
  }
  __device__ void store_rows(int batch_idx, const SequenceRows& x) const {
    store_chunk(rows_chunk(batch_idx), {{static_cast<u32>(x.seqlen_q), static_cast<u32>(x.seqlen_k),
                                         static_cast<u32>(x.row_q), static_cast<u32>(x.row_k)}});
  }
  // Of a sequence that has been counted.
  __device__ SequenceRows known_rows(int batch_idx) const {
    if (!has_rows()) return rows_of(p_, batch_idx, false);
    const Chunk c = load_chunk(rows_chunk(batch_idx));
    return {static_cast<int>(c.words[0]), static_cast<int>(c.words[1]),
            static_cast<int>(c.words[2]), static_cast<int>(c.words[3])};
  }
  __device__ u32 later_word(int entry) const {
    return rows_chunk(kRowEntries) + 4 * static_cast<u32>(entry);
  }
  __device__ u32 slots_word(int entry) const { return later_word(kBatchEntries + entry); }
  __device__ u32 warp_word(int warp) const { return later_word(2 * kBatchEntries + warp); }

  // Sequences of an entry of the prefix sums.
  __device__ int entry_size() const { return (p_.batch + kBatchEntries - 1) / kBatchEntries; }

  // Of those that count.
  __device__ static int thread() { return static_cast<int>(threadIdx.x) - kConsumerThreads; }
  __device__ static void sync() { bar_sync(kCountBarrier, kCountThreads); }

  // Items behind the first one of a head, and partial results, of one head each; sequences that
  // share pages.
  struct Sums {
    int later, slots, shares;
    __device__ void add(const Sums& x) { later += x.later, slots += x.slots, shares += x.shares; }
  };
  // Of all threads that count.
  __device__ int count_total(int x) const {
    const int warp = thread() >> 5, lane = thread() & 31;
    const int of_warp = __reduce_add_sync(0xffffffffu, x);
    if (lane == 0) store_shared(warp_word(warp), static_cast<u32>(of_warp));
    sync();
    int total = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) total += static_cast<int>(load_shared(warp_word(i)));
    return total;
  }
  // The same; `before` becomes the sum of the threads before this one, but for those that share
  // pages. In words of its own: those of count_total() may still be read.
  __device__ Sums count_sums(const Sums& x, Sums* before) const {
    const int warp = thread() >> 5, lane = thread() & 31;
    const Sums inclusive{warp_inclusive_sum(x.later, lane), warp_inclusive_sum(x.slots, lane),
                         __reduce_add_sync(0xffffffffu, x.shares)};
    const auto word = [&](int sum, int i) { return warp_word((sum + 1) * kWarps + i); };
    if (lane == 31) {
      store_shared(word(0, warp), static_cast<u32>(inclusive.later));
      store_shared(word(1, warp), static_cast<u32>(inclusive.slots));
      store_shared(word(2, warp), static_cast<u32>(inclusive.shares));
    }
    sync();
    Sums total{};
    *before = {inclusive.later - x.later, inclusive.slots - x.slots, 0};
    const auto load = [](u32 word) { return static_cast<int>(load_shared(word)); };
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      const Sums sums{load(word(0, i)), load(word(1, i)), load(word(2, i))};
      if (i < warp) before->add(sums);
      total.add(sums);
    }
    return total;
  }

  // A sequence is reported by one thread of the grid. Lengths are read once, unless a thread has
  // several sequences.
  __device__ void count() {
    const int size = entry_size(), begin = thread() * size;
    const int end = min(begin + size, p_.batch);
    int groups = 0;
    Sums sums{};
    FirstPages pending, newest;  // compared late: meanwhile lengths of others are read
    SequenceKeys keys;
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
#pragma unroll 1
      for (int b = begin; b < end; ++b) {
        if (pass == 0 || size > 1) {
          const SequenceRows rows = pass == 0 ? rows_of(p_, b, blockIdx.x == 0) : known_rows(b);
          keys = keys_of_items(p_, b, rows);
          if (pass == 0 && has_rows()) store_rows(b, rows);
        }
        if (pass == 1) {
          const HeadWork work = head_work(keys, run_log2_);
          sums.add({work.num_items - 1, work.num_slots, 0});
          continue;
        }
        groups += groups_of(keys).count;
        if (p_.prefix_groups != nullptr) continue;
        sums.shares += pending.are_same();
        pending = newest;
        newest = first_pages(p_, b, keys);
      }
      if (pass == 1) break;
      num_groups_ = std::int64_t{count_total(groups)} * p_.num_kv_heads;
      run_log2_ = choose_run(num_groups_, p_.num_units);
    }
    sums.shares += pending.are_same() + newest.are_same();
    Sums before;
    const Sums total = count_sums(sums, &before);
    num_items_ = (p_.batch + total.later) * p_.num_kv_heads;
    num_slots_ = total.slots * p_.num_kv_heads;
    store_shared(later_word(thread()), static_cast<u32>(before.later));
    store_shared(slots_word(thread()), static_cast<u32>(before.slots));
    shares_pages_ = total.shares > 0;
    sync();
  }

  // The partial results before those of a sequence.
  __device__ int slots_before(int batch_idx, int lane) const {
    if (p_.work.is_uniform) return batch_idx * p_.work.head.num_slots;
    const int entry = batch_idx / entry_size();
    int slots = static_cast<int>(load_shared(slots_word(entry)));
#pragma unroll 1
    for (int b = entry * entry_size() + lane; b - lane < batch_idx; b += 32)
      slots += __reduce_add_sync(0xffffffffu, b < batch_idx ? work_of(b).num_slots : 0);
    return slots;
  }
  // The sequence that item `rest` behind the first runs belongs to, where each sequence has one
  // head.
  __device__ Place find_later(int rest, int lane) const {
    if (p_.work.is_uniform) {
      const int batch_idx = p_.by_later_items.divide(rest);
      return {batch_idx, batch_idx * (p_.work.head.num_items - 1),
              batch_idx * p_.work.head.num_slots};
    }
    constexpr int kStep = kBatchEntries / 32;
    static_assert(kBatchEntries % 32 == 0 && kStep <= 32);
    const auto num_up_to = [&](int entry, bool exists) {
      const bool is_before = exists && static_cast<int>(load_shared(later_word(entry))) <= rest;
      return __popc(__ballot_sync(0xffffffffu, is_before));
    };
    const int block = num_up_to(lane * kStep, true) - 1;
    const int entry = block * kStep + num_up_to(block * kStep + lane % kStep, lane < kStep) - 1;
    Place at{entry * entry_size(), static_cast<int>(load_shared(later_word(entry))),
             static_cast<int>(load_shared(slots_word(entry)))};
    if (entry_size() == 1) return at;
#pragma unroll 1
    for (const int end = min(at.batch_idx + entry_size(), p_.batch);; at.batch_idx += 32) {
      const int b = at.batch_idx + lane;
      const HeadWork work = b < end ? work_of(b) : HeadWork{1, 0};
      const int later = at.later_before + warp_inclusive_sum(work.num_items - 1, lane);
      const int slots = at.slots_before + warp_inclusive_sum(work.num_slots, lane);
      const unsigned is_later = __ballot_sync(0xffffffffu, later > rest);
      const int found = is_later == 0 ? 31 : __ffs(static_cast<int>(is_later)) - 1;
      if (is_later != 0) {
        at.batch_idx += found;
        at.later_before = __shfl_sync(0xffffffffu, later - (work.num_items - 1), found);
        at.slots_before = __shfl_sync(0xffffffffu, slots - work.num_slots, found);
        return at;
      }
      at.later_before = __shfl_sync(0xffffffffu, later, 31);
      at.slots_before = __shfl_sync(0xffffffffu, slots, 31);
    }
  }

  const Params& p_;
  const u32 smem_;
  int run_log2_ = 0, num_items_, num_slots_;
  std::int64_t num_groups_;
  bool shares_pages_;
};

}  // namespace headrace::cuda::sm90::decode
