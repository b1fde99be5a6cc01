// The consumer warps of a persistent CTA sum blocks of keys into splits and merge splits into
// groups and runs. The merge warps merge the partial results of runs into rows.
#pragma once

#include "backends/cuda/sm90/decode/block.cuh"
#include "backends/cuda/sm90/decode/counters.cuh"
#include "backends/cuda/sm90/decode/merge.cuh"
#include "backends/cuda/sm90/decode/produce.cuh"

namespace headrace::cuda::sm90::decode {

// A thread's sums of a run: two columns of a row for each round of merging.
template <int kDim, int kRows>
class RunSums {
  static constexpr SmemPlan kPlan = smem_plan(kDim, kRows);
  static constexpr int kRounds = kRows / kPlan.merge_rows;
  static constexpr bool kInRegisters = kPlan.run_sums_bytes == 0;
  static_assert(!kInRegisters || kRounds <= 2);

 public:
  __device__ RunSums(u32 smem, int tid)
      : first_(smem + static_cast<u32>(kPlan.run_sums + 16 * tid)) {
    if constexpr (!kInRegisters) {
#pragma unroll
      for (int round = 0; round < kRounds; ++round) set(round, {});
    }
  }
  __device__ __forceinline__ Partial<2> get(int round) const {
    // Not sums_[round]: with an index that the compiler does not know they would lie in memory.
    if constexpr (kInRegisters) return round == 0 ? sums_[0] : sums_[kRounds - 1];
    const Chunk c = load_chunk(address(round));
    return {__uint_as_float(c.words[0]),
            __uint_as_float(c.words[1]),
            {__uint_as_float(c.words[2]), __uint_as_float(c.words[3])}};
  }
  __device__ __forceinline__ void set(int round, const Partial<2>& x) {
    if constexpr (kInRegisters)
      (round == 0 ? sums_[0] : sums_[kRounds - 1]) = x;
    else
      store_chunk(address(round), {{__float_as_uint(x.row_max), __float_as_uint(x.sum),
                                    __float_as_uint(x.o[0]), __float_as_uint(x.o[1])}});
  }

 private:
  __device__ __forceinline__ u32 address(int i) const {
    return first_ + static_cast<u32>(16 * kConsumerThreads * i);
  }

  u32 first_;
  Partial<2> sums_[kInRegisters ? kRounds : 1];
};

template <class V>
class Consumer {
  using Element = typename V::Element;
  static constexpr int kDim = V::kDim, kRows = V::kRows;
  static constexpr int kRowBlocks = kRows / 8, kTiles = kDim / 16;
  static constexpr SmemPlan kPlan = smem_plan(kDim, kRows);
  using Sums = SplitSums<Element, kRowBlocks, kTiles>;

 public:
  __device__ Consumer(const Params& p, Smem<kDim, kRows> smem, int warp, int lane)
      : p_(p),
        smem_(smem),
        warp_(warp),
        lane_(lane),
        blocks_(p, lane),
        fragments_(lane),
        ring_(smem, warp, lane) {}

  __device__ void run() {
    // No producer loads the K and V of a rehearsal.
    if (rehearses_a_block(warp_) && lane_ < 2) mbarrier_arrive(smem_.full(lane_, warp_));
    __syncwarp();
    for (ItemSlot at;; at.next()) {
      mbarrier_wait(smem_.item_full(at.slot), at.parity);
      Item item = load_item(smem_.item(at.slot));
      if (item.batch_idx < 0) break;
      const u32 loaded = item.loaded();
      fragments_.load(smem_.q(at.slot));
      split_ = split_of(warp_, at.slot);
      if (item.is_rehearsal()) rehearse(item);
      release_item(run_item(item, smem_.item(at.slot), loaded), at);
    }
  }

 private:
  // The keys become a block of the warp's split, which is whatever shared memory holds, or stay
  // none.
  __device__ __forceinline__ void rehearse(Item& item) const {
    if (!rehearses_a_block(warp_)) return;
    item.first_key = split_ * kSplitKeys;
    item.end_key = item.first_key + kBlockKeys;
  }
  __device__ __forceinline__ void release_item(u32 loaded, const ItemSlot& at) const {
    u32 empty = released_behind(loaded, smem_.item_empty(at.slot));
    empty = fragments_.released_behind_loads(empty);
    __syncwarp();
    if (lane_ != 0) return;
    mbarrier_arrive(smem_.written(at.slot));  // first: an empty slot is announced again
    mbarrier_arrive(empty);
  }

  // A warp has one split of each group of a run. Returns `loaded` with all further words that it
  // loaded of the item.
  __device__ __forceinline__ u32 run_item(const Item& item, u32 smem_item, u32 loaded) {
    RunSums<kDim, kRows> run_sums(smem_.base, warp_ * 32 + lane_);
#pragma unroll 1
    for (int group = item.first; group < item.end; ++group) {
      Sums sums;
      sums.clear();
      sum_split(item, blocks_, fragments_, ring_, group * kGroupKeys + split_ * kSplitKeys, sums);
      sums.normalise();
      const Item head = load_head(smem_item);
      loaded ^= head.loaded_head();
      merge_splits(head, sums, group, run_sums);
    }
    return loaded;
  }

  // The warps' splits become a group, some rows at a time; a thread then has two columns of a row.
  // `item` is loaded again, without its keys: the loop over blocks has no registers for all of it.
  // The code for 8 rows is there once, since cold code takes longer than a jump.
  __device__ __forceinline__ void merge_splits(const Item& item, const Sums& sums, int group,
                                               RunSums<kDim, kRows>& run_sums) const {
    const bool is_rehearsal = item.is_rehearsal();
    const int num_rows = is_rehearsal && rehearses_a_block(warp_) ? 0 : item.rows(p_);
#pragma unroll
    for (int n = 0; n < kRowBlocks; ++n)
#pragma unroll 1
      for (int row = 8 * n; row < min(8 * n + 8, num_rows); row += kPlan.merge_rows)
        merge_some_rows(item, sums, group, n, row, run_sums);
  }
  // Rows first_row and the next merge_rows, of row block n.
  __device__ __forceinline__ void merge_some_rows(const Item& item, const Sums& sums, int group,
                                                  int n, int first_row,
                                                  RunSums<kDim, kRows>& run_sums) const {
    const int tid = warp_ * 32 + lane_, own_row = tid / (kDim / 2), d = tid % (kDim / 2) * 2;
    const int row = first_row + own_row, round = first_row / kPlan.merge_rows;
    const bool is_rehearsal = item.is_rehearsal();
    const int barrier = is_rehearsal ? kRehearsalBarrier : kConsumerBarrier;
    const int num_threads = is_rehearsal ? kConsumerThreads / 2 : kConsumerThreads;
    bar_sync(barrier, num_threads);  // the round before has been read
    if (round == 0) store_row_sums(sums);
    store_rows(sums, n, first_row);
    bar_sync(barrier, num_threads);
    if (row >= item.rows(p_)) return;
    float2 row_sums[kGroupSplits];
#pragma unroll
    for (int i = 0; i < kGroupSplits; ++i) row_sums[i] = load_shared2(row_sums_address(i, row));
    const Partial<2> merged = merge_group(
        p_.scale_log2, [&](int i) { return row_sums[i]; },
        [&](int i) { return load_shared2(merge_address(i, own_row, d)); });
    Partial<2> sum = run_sums.get(round);
    if constexpr (V::kHasPrefix)
      if (group == item.first_group && item.has_prefix(p_))
        sum = load_state<kDim, 2>(p_, item, kOpenChunk, row, d);
    const bool leaves_groups =
        item.num_items > 1 && static_cast<int>(load_shared(smem_.run_log2())) < kChunkLog2;
    if (leaves_groups)
      sum = merged;
    else
      append(sum, merged, p_.scale_log2);
    run_sums.set(round, sum);
    if (!leaves_groups && group != item.end - 1) return;
    if (item.num_items == 1) {
      if constexpr (V::kHasPrefix)
        if (item.has_prefix(p_)) append_to_chunks<kDim>(p_, item, row, d, sum);
      // A rehearsal stores nothing: write_row() leaves out columns behind the last. Nor does it
      // read sinks, which the kernel before may write.
      write_row<Element>(p_, is_rehearsal ? SinkArgs{} : p_.row_args.sinks, item, row,
                         is_rehearsal ? kDim : d, sum);
      return;
    }
    const int first_chunk = item.first_group / kChunkGroups;
    store_partial<kDim>(
        p_,
        item.slot + (leaves_groups ? group - item.first_group : group / kChunkGroups - first_chunk),
        row, d, sum);
  }
  __device__ __forceinline__ u32 row_sums_address(int split, int row) const {
    return smem_.base + static_cast<u32>(kPlan.row_sums + (split * kRows + row) * 8);
  }
  __device__ __forceinline__ u32 merge_address(int split, int row, int d) const {
    return smem_.base +
           static_cast<u32>(kPlan.merge + (split * kPlan.merge_rows + row) * kPlan.merge_pitch +
                            4 * d);
  }
  __device__ __forceinline__ void store_row_sums(const Sums& sums) const {
    if (lane_ >= 4) return;
#pragma unroll
    for (int i = 0; i < 2 * kRowBlocks; ++i) {
      const u32 to = row_sums_address(split_, 8 * (i / 2) + 2 * lane_ + i % 2);
      store_shared(to, __float_as_uint(sums.row_max[i / 2][i % 2]));
      store_shared(to + 4, __float_as_uint(sums.sum[i / 2][i % 2]));
    }
  }
  // Rows first_row and the next merge_rows, of which a lane has two or none.
  __device__ __forceinline__ void store_rows(const Sums& sums, int n, int first_row) const {
    const int row = 8 * n + 2 * (lane_ & 3) - first_row;
    if (row < 0 || row >= kPlan.merge_rows) return;
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) {
      const int h = i % 2, d = i / 4 * 16 + (lane_ >> 2) + i % 4 / 2 * 8;
      store_shared(merge_address(split_, row + h, d), __float_as_uint(sums.o[i / 4][n][i % 4]));
    }
  }

  const Params& p_;
  const Smem<kDim, kRows> smem_;
  const int warp_, lane_;
  int split_ = 0;  // of each group of the item
  const BlockSums<Element, kRowBlocks> blocks_;
  QueryFragments<kDim, kRows> fragments_;
  WarpRing<Smem<kDim, kRows>, kPlan.stages> ring_;
};

// The merge warps wait for the partial results of a run, count its arrival and merge what is
// complete: the groups of a chunk, then the chunks of a head. Meanwhile the consumers compute the
// next items.
template <class V>
class Merger {
  static constexpr int kDim = V::kDim;

 public:
  __device__ Merger(const Params& p, Smem<kDim, V::kRows> smem, unsigned char* smem_base,
                    int run_log2, int tid)
      : p_(p),
        smem_(smem),
        is_last_(reinterpret_cast<volatile int*>(smem_base + smem_plan(kDim, V::kRows).is_last)),
        run_log2_(run_log2),
        tid_(tid) {}

  __device__ void run() {
    for (ItemSlot at;; at.next()) {
      mbarrier_wait(smem_.item_full(at.slot), at.parity);
      const Item item = load_item(smem_.item(at.slot));
      if (item.batch_idx < 0) break;
      const bool has_partials = item.num_items > 1;
      if (has_partials) mbarrier_wait(smem_.written(at.slot), at.parity);
      bar_sync(kMergeBarrier, kMergeThreads);
      const u32 empty = released_behind(item.loaded(), smem_.item_empty(at.slot));
      if (tid_ == 0) mbarrier_arrive(empty);
      if (has_partials) arrive(item);
    }
  }

 private:
  // The head's slots hold its groups, and a merged chunk replaces its first group. Where runs are
  // chunks, the slots hold chunks.
  __device__ __forceinline__ void arrive(const Item& item) const {
    const int end_group = item.first_group + item.num_groups;
    const int chunk = item.first / kChunkGroups, first_chunk = item.first_group / kChunkGroups;
    const int num_chunks = (end_group - 1) / kChunkGroups - first_chunk + 1;
    const bool has_groups = run_log2_ < kChunkLog2;
    const Parts chunks = has_groups
                             ? Parts{item.slot, first_chunk * kChunkGroups - item.first_group,
                                     kChunkGroups, num_chunks}
                             : Parts{item.slot, 0, 1, num_chunks};
    const int first = max(chunk * kChunkGroups, item.first_group);
    const int end = min((chunk + 1) * kChunkGroups, end_group);
    const Parts groups = {chunks.slot(chunk - first_chunk), 0, 1, end - first};
    Parts parts = has_groups ? groups : chunks;
    int counter = has_groups ? p_.batch * p_.num_kv_heads + groups.first : item.head_idx(p_);
    int num_arrivals =
        has_groups ? ((end - 1) >> run_log2_) - (first >> run_log2_) + 1 : num_chunks;
    int before = !has_groups ? kWholeChunks : chunk == first_chunk ? kOpenChunk : kNoState;
#pragma unroll 1
    for (bool is_row = !has_groups || num_chunks == 1;; is_row = true) {
      if (!is_last_of(p_.arrived + counter, num_arrivals)) return;
      merge(item, parts, before, is_row);
      if (is_row) return;
      parts = chunks;
      before = kWholeChunks;
      counter = item.head_idx(p_);
      num_arrivals = num_chunks;
    }
  }

  // Writes rows of the head, or a partial result that replaces the first of the parts. One warp per
  // row. `before`: the state of a shared prefix that the parts follow.
  __device__ __forceinline__ void merge(const Item& item, const Parts& parts, int before,
                                        bool is_row) const {
    const int lane = tid_ & 31, warp = tid_ >> 5, d = kDim / 32 * lane;
    const u32 smem = smem_.merge_pairs() + static_cast<u32>(8 * kPartsAtOnce * warp);
#pragma unroll 1
    for (int row = warp; row < item.rows(p_); row += kMergeWarps) {
      Partial<kDim / 32> sum;
      const bool has_prefix = V::kHasPrefix && before != kNoState && item.has_prefix(p_);
      if (has_prefix) sum = load_state<kDim, kDim / 32>(p_, item, before, row, d);
      append_slots<kDim>(p_, parts, row, d, smem, lane, sum);
      if (has_prefix && is_row && before == kOpenChunk)
        append_to_chunks<kDim>(p_, item, row, d, sum);
      if (is_row)
        write_row<typename V::Element>(p_, item, row, d, sum);
      else
        store_partial<kDim>(p_, parts.first, row, d, sum);
    }
  }

  // Whether this arrival is the last of `count`. What the merge warps stored before is visible to
  // those of the last.
  __device__ __forceinline__ bool is_last_of(int* arrived, int count) const {
    bar_sync(kMergeBarrier, kMergeThreads);
    if (count == 1) return true;
    if (tid_ == 0) *is_last_ = atom_add_acq_rel(arrived, 1) == count - 1;
    bar_sync(kMergeBarrier, kMergeThreads);
    return *is_last_ != 0;
  }

  const Params& p_;
  const Smem<kDim, V::kRows> smem_;
  volatile int* const is_last_;
  const int run_log2_, tid_;
};

}  // namespace headrace::cuda::sm90::decode
