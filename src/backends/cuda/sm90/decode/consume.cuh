// The consumer warps: blocks of keys become splits, splits become groups and groups items.
#pragma once

#include "backends/cuda/sm90/decode/counters.cuh"
#include "backends/cuda/sm90/decode/produce.cuh"

namespace headrace::cuda::sm90::decode {

inline constexpr int kConsumerBarrier = 1, kMergeBarrier = 2;  // named barriers

// A thread's sums of a run, of two columns of a row in each round: groups of the chunk, chunks of
// the run.
template <int kDim, int kRows>
class RunSums {
  static constexpr SmemPlan kPlan = smem_plan(kDim, kRows);
  static constexpr int kRounds = kRows / kPlan.merge_rows;
  static constexpr bool kInRegisters = kPlan.run_sums_bytes == 0;

 public:
  struct Sums {
    Partial chunk, all;
  };
  __device__ RunSums(u32 smem, int tid)
      : first_(smem + static_cast<u32>(kPlan.run_sums + 16 * tid)) {
    if constexpr (!kInRegisters) {
#pragma unroll
      for (int round = 0; round < kRounds; ++round) set(round, {});
    }
  }
  __device__ __forceinline__ Sums get(int round) const {
    if constexpr (kInRegisters) return sums_[round];
    return {load(2 * round), load(2 * round + 1)};
  }
  __device__ __forceinline__ void set(int round, const Sums& x) {
    if constexpr (kInRegisters) {
      sums_[round] = x;
    } else {
      store(2 * round, x.chunk);
      store(2 * round + 1, x.all);
    }
  }

 private:
  __device__ __forceinline__ u32 address(int i) const {
    return first_ + static_cast<u32>(16 * kConsumerThreads * i);
  }
  __device__ __forceinline__ Partial load(int i) const {
    const Chunk c = load_chunk(address(i));
    return {__uint_as_float(c.words[0]),
            __uint_as_float(c.words[1]),
            {__uint_as_float(c.words[2]), __uint_as_float(c.words[3])}};
  }
  __device__ __forceinline__ void store(int i, const Partial& x) const {
    store_chunk(address(i), {{__float_as_uint(x.row_max), __float_as_uint(x.sum),
                              __float_as_uint(x.o.x), __float_as_uint(x.o.y)}});
  }

  u32 first_;
  Sums sums_[kInRegisters ? kRounds : 1];
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
  __device__ Consumer(const Params& p, Smem<kDim, kRows> smem, int warp, int lane)
      : p_(p),
        smem_(smem),
        warp_(warp),
        lane_(lane),
        reader_(lane),
        queries_(lane),
        limits_(p, lane) {}

  __device__ void run() {
    for (ItemSlot at;; at.next()) {
      mbarrier_wait(smem_.item_full(at.slot), at.parity);
      const int id = static_cast<int>(load_shared(smem_.item(at.slot)));
      if (id < 0) break;
      const Item item = item_of(p_, id);
      queries_.load(smem_.q(at.slot));
      if constexpr (V::kKind == ItemKind::split) {
        split_item(item);
        release(queries_.released_behind_loads(smem_.item_empty(at.slot)));
        count_split(item);
      } else {
        run_item(item);
        release(queries_.released_behind_loads(smem_.item_empty(at.slot)));
        if (p_.work.partials_per_head > 0 && lane_ == 0) mbarrier_arrive(smem_.written(at.slot));
      }
    }
  }

 private:
  __device__ __forceinline__ void release(u32 barrier) const {
    __syncwarp();
    if (lane_ == 0) mbarrier_arrive(barrier);
  }

  // ---- a block

  // Rows whose first or last key lies in the block, or that see none of it.
  __device__ __forceinline__ bool needs_mask(int key) const {
    const int all_begin = max(p_.left + p_.seqlen_q - 1, 0), all_end = min(p_.right, p_.seqlen_k);
    return key < all_begin || key + kBlockKeys > all_end;
  }
  __device__ __forceinline__ u32 keep_pair(int key) const {
    const auto is_seen = [&](int x) { return x >= p_.work.first_key && x < p_.work.end_key; };
    return (is_seen(key) ? 0xffffu : 0u) | (is_seen(key + 1) ? 0xffff0000u : 0u);
  }
  __device__ __forceinline__ void mask_and_max(float (&s)[kRowBlocks][4], int key,
                                               float (&top)[kRowBlocks][2]) const {
    if (needs_mask(key)) limits_.mask(s, key, lane_);
    block_max<kRowBlocks>(s, top);
  }
  // Scores to O, with V in `block`.
  template <int kCount>
  __device__ __forceinline__ u32 add_block(Sums<kCount>& sums, float (&s)[kRowBlocks][4],
                                           const float (&top)[kRowBlocks][2], int key, u32 block,
                                           int first_tile) const {
    u32 p[kRowBlocks][2];
    sums.add_probs(s, top, p_.scale_log2, p);
    const int pair = key + 2 * (lane_ & 3);
    if (needs_mask(key))
      return add_values<Element, true>(reader_, block, first_tile, p,
                                       {keep_pair(pair), keep_pair(pair + 8)}, sums.o);
    return add_values<Element, false>(reader_, block, first_tile, p, {0, 0}, sums.o);
  }

  // ---- items that are runs of groups: a warp has one split of each group

  __device__ __forceinline__ void run_item(const Item& item) {
    const int first = item.first * p_.work.run_groups;
    const int end =
        min(first + p_.work.run_groups, p_.work.first_key / kGroupKeys + p_.work.num_groups);
    RunSums<kDim, kRows> run_sums(smem_.base, warp_ * 32 + lane_);
#pragma unroll 1
    for (int group = max(first, p_.work.first_key / kGroupKeys); group < end; ++group) {
      Sums<kTiles> sums;
      sums.clear();
      sum_split(sums, group * kGroupKeys + warp_ * kSplitKeys);
      sums.normalise();
      merge_splits(item, sums, group, group == end - 1, run_sums);
    }
  }

  __device__ __forceinline__ void sum_split(Sums<kTiles>& sums, int first_key) {
#pragma unroll 1
    for (int i = 0; i < kSplitBlocks; ++i) {
      const int key = first_key + i * kBlockKeys;
      if (!is_visible_block(p_, key)) continue;
      float s[kRowBlocks][4], top[kRowBlocks][2];
      mbarrier_wait(smem_.full(ring_.stage, warp_), ring_.parity);
      u32 loaded = block_scores<Element>(reader_, queries_, smem_.block(ring_.stage, warp_), s);
      release(released_behind(loaded, smem_.empty(ring_.stage, warp_)));
      ring_.next();
      mask_and_max(s, key, top);
      mbarrier_wait(smem_.full(ring_.stage, warp_), ring_.parity);
      loaded = add_block(sums, s, top, key, smem_.block(ring_.stage, warp_), 0);
      release(released_behind(loaded, smem_.empty(ring_.stage, warp_)));
      ring_.next();
    }
  }

  // The warps' splits become a group, some rows at a time; a thread then has two columns of a row.
  __device__ __forceinline__ void merge_splits(const Item& item, const Sums<kTiles>& sums,
                                               int group, bool is_last,
                                               RunSums<kDim, kRows>& run_sums) const {
    const int tid = warp_ * 32 + lane_;
    const int own_row = tid / (kDim / 2), d = tid % (kDim / 2) * 2;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int first_row = round * kPlan.merge_rows, row = first_row + own_row;
      if (first_row >= p_.rows) break;
      bar_sync(kConsumerBarrier, kConsumerThreads);  // the round before has been read
      if (round == 0) store_row_sums(sums);
      store_rows(sums, first_row);
      bar_sync(kConsumerBarrier, kConsumerThreads);
      if (row >= p_.rows) continue;
      float2 row_sums[kGroupSplits];
#pragma unroll
      for (int i = 0; i < kGroupSplits; ++i) row_sums[i] = load_shared2(row_sums_address(i, row));
      const Partial merged = merge_group(row_sums, p_.scale_log2, [&](int i) {
        return load_shared2(merge_address(i, own_row, d));
      });
      typename RunSums<kDim, kRows>::Sums so_far = run_sums.get(round);
      append_group(item, row, d, merged, group, is_last, so_far.chunk, so_far.all);
      run_sums.set(round, so_far);
    }
  }
  __device__ __forceinline__ void append_group(const Item& item, int row, int d,
                                               const Partial& merged, int group, bool is_last,
                                               Partial& chunk, Partial& all) const {
    if (p_.work.partials_per_head > 0 && p_.work.partial_kind == PartialKind::group) {
      store_partial<kDim>(p_, item, group, row, d, merged);
      return;
    }
    append(chunk, merged, p_.scale_log2);
    if (group % kChunkGroups != kChunkGroups - 1 && !is_last) return;
    if (p_.work.partials_per_head > 0) {
      store_partial<kDim>(p_, item, group / kChunkGroups, row, d, chunk);
    } else {
      append(all, chunk, p_.scale_log2);
      if (is_last) write_row<Element>(p_, item, row, d, all);
    }
    chunk = {};
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
      if (!has_tile() || !is_visible_block(p_, first_key + i * kBlockKeys)) continue;
      loaded ^= block_scores<Element>(reader_, queries_, smem_.block(ring_.stage, i), s[i]);
      mask_and_max(s[i], first_key + i * kBlockKeys, top[i]);
    }
#pragma unroll
    for (int i = 0; i < kSplitBlocks; ++i) {
      mbarrier_wait(smem_.full(ring_.stage, kSplitBlocks + i), ring_.parity);
      if (!has_tile() || !is_visible_block(p_, first_key + i * kBlockKeys)) continue;
      loaded ^= add_block(sums, s[i], top[i], first_key + i * kBlockKeys,
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

  // Each warp counts what it stored itself, so it stores (maximum, sum) too.
  __device__ __forceinline__ void store_split(const Item& item, const Sums<1>& sums) const {
#pragma unroll
    for (int i = 0; i < 2 * kRowBlocks; ++i) {
      const int n = i / 2, h = i % 2, row = 8 * n + 2 * (lane_ & 3) + h;
      if (row >= p_.rows) continue;
      const PartialRow to = partial_row<kDim>(p_, item, item.first, row, warp_);
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
    if (before != p_.work.items_per_head - 1) return;
    for (int row = lane_ >> 3; row < p_.rows; row += 4)
      merge_partials<V>(p_, item, row, 16 * warp_ + 2 * (lane_ & 7), warp_);
  }

  const Params& p_;
  const Smem<kDim, kRows> smem_;
  const int warp_, lane_;
  const BlockReader reader_;
  QueryFragments<kDim, kRows> queries_;
  const RowLimits<kRowBlocks> limits_;
  Ring<kPlan.stages> ring_;  // the warp's; of split items all rings advance together
};

// Warps that wait for the partial results of a run, count its arrival and, if it is the last of its
// sequence and head, merge them. The consumers are in the next items meanwhile.
template <class V>
__device__ void merge_items(const Params& p, Smem<V::kDim, V::kRows> smem, unsigned char* smem_base,
                            int tid) {
  constexpr int kColumnPairs = V::kDim / 2;
  volatile int* is_last =
      reinterpret_cast<volatile int*>(smem_base + smem_plan(V::kDim, V::kRows).is_last);
  const bool counts = V::kKind == ItemKind::run && p.work.partials_per_head > 0;
  for (ItemSlot at;; at.next()) {
    mbarrier_wait(smem.item_full(at.slot), at.parity);
    const int id = static_cast<int>(load_shared(smem.item(at.slot)));
    if (id < 0) break;
    const Item item = item_of(p, id);
    if (counts) mbarrier_wait(smem.written(at.slot), at.parity);
    bar_sync(kMergeBarrier, kMergeThreads);
    if (tid == 0) mbarrier_arrive(smem.item_empty(at.slot));
    if (!counts) continue;
    if (tid == 0)
      *is_last = atom_add_acq_rel(p.arrived + item.head_idx(p), 1) == p.work.items_per_head - 1;
    bar_sync(kMergeBarrier, kMergeThreads);
    if (*is_last == 0) continue;
    for (int i = tid; i < p.rows * kColumnPairs; i += kMergeThreads)
      merge_partials<V>(p, item, i / kColumnPairs, i % kColumnPairs * 2, 0);
  }
}

}  // namespace headrace::cuda::sm90::decode
