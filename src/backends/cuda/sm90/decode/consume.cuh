// The consumer warps sum blocks of keys into splits and merge splits into groups and runs. The
// merge warps merge the partial results of runs into rows.
#pragma once

#include "backends/cuda/sm90/decode/counters.cuh"
#include "backends/cuda/sm90/decode/merge.cuh"
#include "backends/cuda/sm90/decode/produce.cuh"

namespace headrace::cuda::sm90::decode {

inline constexpr int kConsumerBarrier = 1, kMergeBarrier = 2;  // named barriers

// A thread's sums of a run: two columns of a row for each round of merging.
template <int kDim, int kRows>
class RunSums {
  static constexpr SmemPlan kPlan = smem_plan(kDim, kRows);
  static constexpr int kRounds = kRows / kPlan.merge_rows;
  static constexpr bool kInRegisters = kPlan.run_sums_bytes == 0;

 public:
  __device__ RunSums(u32 smem, int tid)
      : first_(smem + static_cast<u32>(kPlan.run_sums + 16 * tid)) {
    if constexpr (!kInRegisters) {
#pragma unroll
      for (int round = 0; round < kRounds; ++round) set(round, {});
    }
  }
  __device__ __forceinline__ Partial<2> get(int round) const {
    if constexpr (kInRegisters) return sums_[round];
    const Chunk c = load_chunk(address(round));
    return {__uint_as_float(c.words[0]),
            __uint_as_float(c.words[1]),
            {__uint_as_float(c.words[2]), __uint_as_float(c.words[3])}};
  }
  __device__ __forceinline__ void set(int round, const Partial<2>& x) {
    if constexpr (kInRegisters)
      sums_[round] = x;
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
  static constexpr int kRounds = kRows / kPlan.merge_rows;  // of merging a group
  template <int kCount>
  using Sums = SplitSums<Element, kRowBlocks, kCount>;

 public:
  __device__ Consumer(const Params& p, Smem<kDim, kRows> smem, int run_log2, int warp, int lane)
      : p_(p),
        smem_(smem),
        run_log2_(run_log2),
        warp_(warp),
        lane_(lane),
        reader_(lane),
        fragments_(lane),
        queries_(query_bytes<kRowBlocks>(p, lane)) {}

  __device__ void run() {
    for (ItemSlot at;; at.next()) {
      mbarrier_wait(smem_.item_full(at.slot), at.parity);
      const Item item = load_item(smem_.item(at.slot));
      if (item.batch_idx < 0) break;
      const u32 loaded = item.loaded();
      fragments_.load(smem_.q(at.slot));
      if constexpr (V::kKind == ItemKind::split) {
        split_item(item);
        release_item(loaded, at);
        count_split(item);
      } else {
        release_item(run_item(item, smem_.item(at.slot), loaded), at);
        if (lane_ == 0) mbarrier_arrive(smem_.written(at.slot));
      }
    }
  }

 private:
  __device__ __forceinline__ void release_item(u32 loaded, const ItemSlot& at) const {
    const u32 empty = released_behind(loaded, smem_.item_empty(at.slot));
    release(fragments_.released_behind_loads(empty));
  }
  __device__ __forceinline__ void release(u32 barrier) const {
    __syncwarp();
    if (lane_ == 0) mbarrier_arrive(barrier);
  }

  // ---- a block

  // Whether some row does not see all keys of the block.
  __device__ __forceinline__ static bool needs_mask(const Item& item, int key) {
    const int all_begin = max(item.left + item.seqlen_q - 1, 0);
    return key < all_begin || key + kBlockKeys > min(item.right, item.seqlen_k);
  }
  __device__ __forceinline__ static u32 keep_pair(const Item& item, int key) {
    const auto is_seen = [&](int x) { return x >= item.first_key && x < item.end_key; };
    return (is_seen(key) ? 0xffffu : 0u) | (is_seen(key + 1) ? 0xffff0000u : 0u);
  }
  __device__ __forceinline__ void mask_and_max(const Item& item, float (&s)[kRowBlocks][4], int key,
                                               float (&top)[kRowBlocks][2]) const {
    if (needs_mask(item, key)) mask_scores<kRowBlocks>(item, queries_, s, key, lane_);
    block_max<kRowBlocks>(s, top);
  }
  // Scores to O, with V in `block`.
  template <int kCount>
  __device__ __forceinline__ u32 add_block(const Item& item, Sums<kCount>& sums,
                                           float (&s)[kRowBlocks][4],
                                           const float (&top)[kRowBlocks][2], int key, u32 block,
                                           int first_tile) const {
    u32 p[kRowBlocks][2];
    sums.add_probs(s, top, p_.scale_log2, p);
    const int pair = key + 2 * (lane_ & 3);
    if (needs_mask(item, key))
      return add_values<Element, true>(reader_, block, first_tile, p,
                                       {keep_pair(item, pair), keep_pair(item, pair + 8)}, sums.o);
    return add_values<Element, false>(reader_, block, first_tile, p, {0, 0}, sums.o);
  }

  // ---- items that are runs of groups: a warp has one split of each group

  // Returns `loaded` with all further words that it loaded of the item.
  __device__ __forceinline__ u32 run_item(const Item& item, u32 smem_item, u32 loaded) {
    RunSums<kDim, kRows> run_sums(smem_.base, warp_ * 32 + lane_);
#pragma unroll 1
    for (int group = item.first; group < item.end; ++group) {
      Sums<kTiles> sums;
      sums.clear();
      sum_split(item, sums, group * kGroupKeys + warp_ * kSplitKeys);
      sums.normalise();
      const Item head = load_head(smem_item);
      loaded ^= head.loaded_head();
      merge_splits(head, sums, group, run_sums);
    }
    return loaded;
  }

  __device__ __forceinline__ void sum_split(const Item& item, Sums<kTiles>& sums, int first_key) {
#pragma unroll 1
    for (int i = 0; i < kSplitBlocks; ++i) {
      const int key = first_key + i * kBlockKeys;
      if (!item.sees_block(key)) continue;
      float s[kRowBlocks][4], top[kRowBlocks][2];
      mbarrier_wait(smem_.full(ring_.stage, warp_), ring_.parity);
      u32 loaded = block_scores<Element>(reader_, fragments_, smem_.block(ring_.stage, warp_), s);
      release(released_behind(loaded, smem_.empty(ring_.stage, warp_)));
      ring_.next();
      mask_and_max(item, s, key, top);
      mbarrier_wait(smem_.full(ring_.stage, warp_), ring_.parity);
      loaded = add_block(item, sums, s, top, key, smem_.block(ring_.stage, warp_), 0);
      release(released_behind(loaded, smem_.empty(ring_.stage, warp_)));
      ring_.next();
    }
  }

  // The warps' splits become a group, some rows at a time; a thread then has two columns of a row.
  // `item` is loaded again, without its keys: the loop over blocks has no registers for all of it.
  __device__ __forceinline__ void merge_splits(const Item& item, const Sums<kTiles>& sums,
                                               int group, RunSums<kDim, kRows>& run_sums) const {
    const int tid = warp_ * 32 + lane_, num_rows = item.rows(p_);
    const int own_row = tid / (kDim / 2), d = tid % (kDim / 2) * 2;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int first_row = round * kPlan.merge_rows, row = first_row + own_row;
      if (first_row >= num_rows) break;
      bar_sync(kConsumerBarrier, kConsumerThreads);  // the round before has been read
      if (round == 0) store_row_sums(sums);
      store_rows(sums, first_row);
      bar_sync(kConsumerBarrier, kConsumerThreads);
      if (row >= num_rows) continue;
      float2 row_sums[kGroupSplits];
#pragma unroll
      for (int i = 0; i < kGroupSplits; ++i) row_sums[i] = load_shared2(row_sums_address(i, row));
      const Partial<2> merged = merge_group(
          p_.scale_log2, [&](int i) { return row_sums[i]; },
          [&](int i) { return load_shared2(merge_address(i, own_row, d)); });
      Partial<2> sum = run_sums.get(round);
      const bool leaves_groups = item.num_items > 1 && run_log2_ < kChunkLog2;
      if (leaves_groups)
        sum = merged;
      else
        append(sum, merged, p_.scale_log2);
      run_sums.set(round, sum);
      if (!leaves_groups && group != item.end - 1) continue;
      if (item.num_items == 1) {
        write_row<Element>(p_, item, row, d, sum);
        continue;
      }
      const int first_chunk = item.first_group / kChunkGroups;
      store_partial<kDim>(p_,
                          item.slot + (leaves_groups ? group - item.first_group
                                                     : group / kChunkGroups - first_chunk),
                          row, d, sum);
    }
  }
  __device__ __forceinline__ u32 row_sums_address(int split, int row) const {
    return smem_.base + static_cast<u32>(kPlan.row_sums + (split * kRows + row) * 8);
  }
  __device__ __forceinline__ u32 merge_address(int split, int row, int d) const {
    return smem_.base +
           static_cast<u32>(kPlan.merge + (split * kPlan.merge_rows + row) * kPlan.merge_pitch +
                            4 * d);
  }
  __device__ __forceinline__ void store_row_sums(const Sums<kTiles>& sums) const {
    if (lane_ >= 4) return;
#pragma unroll
    for (int i = 0; i < 2 * kRowBlocks; ++i) {
      const u32 to = row_sums_address(warp_, 8 * (i / 2) + 2 * lane_ + i % 2);
      store_shared(to, __float_as_uint(sums.row_max[i / 2][i % 2]));
      store_shared(to + 4, __float_as_uint(sums.sum[i / 2][i % 2]));
    }
  }
  // Rows first_row and the next merge_rows, of which a lane has two or none.
  __device__ __forceinline__ void store_rows(const Sums<kTiles>& sums, int first_row) const {
    const int n = first_row / 8, row = 8 * n + 2 * (lane_ & 3) - first_row;
    if (row < 0 || row >= kPlan.merge_rows) return;
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) {
      const int h = i % 2, d = i / 4 * 16 + (lane_ >> 2) + i % 4 / 2 * 8;
      store_shared(merge_address(warp_, row + h, d), __float_as_uint(sums.o[i / 4][n][i % 4]));
    }
  }

  // ---- items that are single splits: every warp computes all of S and 16 dims of O

  __device__ __forceinline__ bool has_tile() const { return warp_ < kTiles; }

  __device__ __forceinline__ void split_item(const Item& item) {
    Sums<1> sums;
    sums.clear();
    const int first_key = item.first * kSplitKeys;
    float s[kSplitBlocks][kRowBlocks][4], top[kSplitBlocks][kRowBlocks][2];
    u32 loaded = 0;
#pragma unroll
    for (int i = 0; i < kSplitBlocks; ++i) {
      mbarrier_wait(smem_.full(ring_.stage, i), ring_.parity);
      if (!has_tile() || !item.sees_block(first_key + i * kBlockKeys)) continue;
      loaded ^= block_scores<Element>(reader_, fragments_, smem_.block(ring_.stage, i), s[i]);
      mask_and_max(item, s[i], first_key + i * kBlockKeys, top[i]);
    }
#pragma unroll
    for (int i = 0; i < kSplitBlocks; ++i) {
      mbarrier_wait(smem_.full(ring_.stage, kSplitBlocks + i), ring_.parity);
      if (!has_tile() || !item.sees_block(first_key + i * kBlockKeys)) continue;
      loaded ^= add_block(item, sums, s[i], top[i], first_key + i * kBlockKeys,
                          smem_.block(ring_.stage, kSplitBlocks + i), warp_);
    }
    const u32 empty = released_behind(loaded, smem_.empty(ring_.stage, lane_ % kConsumerWarps));
    __syncwarp();
    if (lane_ < kConsumerWarps) mbarrier_arrive(empty);
    ring_.next();
    if (!has_tile()) return;
    sums.normalise();
    store_split(item, sums);
  }

  // A warp's count covers its own stores only, so each warp stores a copy of (maximum, sum).
  __device__ __forceinline__ void store_split(const Item& item, const Sums<1>& sums) const {
#pragma unroll
    for (int i = 0; i < 2 * kRowBlocks; ++i) {
      const int n = i / 2, h = i % 2, row = 8 * n + 2 * (lane_ & 3) + h;
      if (row >= item.rows(p_)) continue;
      const int slot = item.slot + item.first - item.first_key / kSplitKeys;
      const PartialRow to = partial_row<kDim>(p_, slot, row, warp_);
      __stcg(to.o + 16 * warp_ + (lane_ >> 2), sums.o[0][n][h]);
      __stcg(to.o + 16 * warp_ + (lane_ >> 2) + 8, sums.o[0][n][2 + h]);
      if (lane_ < 4) decode::store_row_sums(to.sums, sums.row_max[n][h], sums.sum[n][h]);
    }
  }

  __device__ __forceinline__ void count_split(const Item& item) const {
    if (!has_tile()) return;
    int before = 0;
    if (lane_ == 0) {
      mbarrier_wait(smem_.opened(), 0);
      before = atom_add_acq_rel(p_.arrived + item.head_idx(p_) * kTiles + warp_, 1);
    }
    before = __shfl_sync(0xffffffffu, before, 0);
    __syncwarp();
    if (before != item.num_items - 1) return;
    for (int row = lane_ >> 3; row < item.rows(p_); row += 4)
      merge_head_splits<V>(p_, item, row, 16 * warp_ + 2 * (lane_ & 7), warp_);
  }

  const Params& p_;
  const Smem<kDim, kRows> smem_;
  const int run_log2_, warp_, lane_;
  const BlockReader reader_;
  QueryFragments<kDim, kRows> fragments_;
  const u32 queries_;
  Ring<kPlan.stages> ring_;  // the warp's; of split items all rings advance together
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
      const bool has_partials = V::kKind == ItemKind::run && item.num_items > 1;
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
#pragma unroll 1
    for (bool is_row = !has_groups || num_chunks == 1;; is_row = true) {
      if (!is_last_of(p_.arrived + counter, num_arrivals)) return;
      merge(item, parts, is_row);
      if (is_row) return;
      parts = chunks;
      counter = item.head_idx(p_);
      num_arrivals = num_chunks;
    }
  }

  // Writes rows of the head, or a partial result that replaces the first of the parts. One warp per
  // row.
  __device__ __forceinline__ void merge(const Item& item, const Parts& parts, bool is_row) const {
    const int lane = tid_ & 31, warp = tid_ >> 5, d = kDim / 32 * lane;
    const u32 smem = smem_.merge_pairs() + static_cast<u32>(8 * kPartsAtOnce * warp);
#pragma unroll 1
    for (int row = warp; row < item.rows(p_); row += kMergeWarps) {
      const auto sum = append_slots<kDim>(p_, parts, row, smem, lane);
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
