// What a CTA of the transposed kernel computes, one after the other: splits of tile heads.
#pragma once

#include "backends/cuda/common/lengths.cuh"
#include "backends/cuda/sm90/fwd/config.h"
#include "backends/cuda/sm90/fwd/params.h"
#include "backends/cuda/sm90/shared.cuh"

namespace headrace::cuda::sm90::fwd {

// A split of a sequence and tile head, its k-blocks as in a TileInfo.
struct SplitItem {
  int batch, head, split;
  int row_q, row_k, seqlen_q, seqlen_k;
  int right, left;
  int block_max, block_min, unmasked_begin, unmasked_end;

  __device__ __forceinline__ bool has_keys() const { return block_max > block_min; }
  __device__ __forceinline__ bool is_masked(int n) const {
    return n < unmasked_begin || n >= unmasked_end;
  }
};

// What item i is, in ascending order of i. All lanes of a warp call it.
template <Tile kTile>
class SplitItems {
 public:
  __device__ __forceinline__ SplitItems(const Params& p, bool reports)
      : p_(p), reports_(reports), lane_(static_cast<int>(threadIdx.x) & 31) {}

  __device__ __forceinline__ bool find(int i, SplitItem& item) {
    const int most = max(p_.splits.max_splits, 1);
    if (p_.has_device_lengths == 0) {
      if (i >= p_.sizes.batch * p_.tiles.tile_heads * most) return false;
      const int head = i / most;
      item.split = i - head * most;
      item.batch = head / p_.tiles.tile_heads;
      item.head = head - item.batch * p_.tiles.tile_heads;
      item.row_q = item.row_k = 0;
      item.seqlen_q = p_.tiles.seqlen_q;
      item.seqlen_k = p_.tiles.seqlen_k;
    } else if (!find_by_lengths(i, item)) {
      return false;
    }
    set_blocks(item);
    return true;
  }

 private:
  // 32 sequences at a time, from where the last search ended.
  __device__ __forceinline__ bool find_by_lengths(int i, SplitItem& item) {
    for (; first_ < p_.sizes.batch; first_ += 32) {
      Sequence mine{};
      if (first_ + lane_ < p_.sizes.batch)
        mine =
            sequence_with_used_keys(p_.sizes, p_.lengths, p_.used_keys, first_ + lane_, reports_);
      const int splits = p_.splits.max_splits != 0
                             ? num_splits(static_cast<int>(mine.seqlen_k), p_.splits.num_short)
                             : 1;
      const int items =
          first_ + lane_ < p_.sizes.batch && mine.seqlen_q > 0 ? splits * p_.tiles.tile_heads : 0;
      int end = items;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int below = __shfl_up_sync(0xffffffffu, end, step);
        if (lane_ >= step) end += below;
      }
      end += before_;
      const u32 holds = __ballot_sync(0xffffffffu, i < end);
      if (holds == 0) {
        before_ = __shfl_sync(0xffffffffu, end, 31);
        continue;
      }
      const int owner = __ffs(static_cast<int>(holds)) - 1;
      const auto of_owner = [owner](int x) { return __shfl_sync(0xffffffffu, x, owner); };
      item.batch = first_ + owner;
      item.row_q = of_owner(static_cast<int>(mine.row_q));
      item.row_k = of_owner(static_cast<int>(mine.row_k));
      item.seqlen_q = of_owner(static_cast<int>(mine.seqlen_q));
      item.seqlen_k = of_owner(static_cast<int>(mine.seqlen_k));
      const int of_sequence = i - of_owner(end - items), all_splits = of_owner(splits);
      item.head = of_sequence / all_splits;
      item.split = of_sequence - item.head * all_splits;
      return true;
    }
    return false;
  }
  __device__ __forceinline__ void set_blocks(SplitItem& item) const {
    constexpr int kKeys = kTile.keys;
    const int diagonal = p_.tiles.is_top_left ? 0 : item.seqlen_k - item.seqlen_q;
    item.right = diagonal + p_.tiles.window_right + 1;
    item.left = diagonal - p_.tiles.window_left;
    const int last_query = item.seqlen_q - 1;
    item.block_min = max(item.left, 0) / kKeys;
    item.block_max = (max(min(item.seqlen_k, item.right + last_query), 0) + kKeys - 1) / kKeys;
    if (p_.splits.max_splits != 0) {
      const int num_short = p_.splits.num_short;
      item.block_min = max(item.block_min, split_begin(item.split, num_short) / kKeys);
      item.block_max = min(item.block_max, split_begin(item.split + 1, num_short) / kKeys);
    }
    item.unmasked_begin = (max(item.left + last_query, 0) + kKeys - 1) / kKeys;
    item.unmasked_end = p_.tiles.window_right == kOpenWindow
                            ? item.seqlen_k / kKeys
                            : max(min(item.seqlen_k, item.right) - 1, 0) / kKeys;
  }

  const Params& p_;
  const bool reports_;
  const int lane_;
  int first_ = 0, before_ = 0;
};

// Full and empty of the stages of K, V and Q.
template <Tile kTile>
struct TransposedBarriers {
  static constexpr int kKFull = 0, kKEmpty = kTile.k_stages, kVFull = 2 * kTile.k_stages,
                       kVEmpty = kVFull + kTile.v_stages, kQFull = kVEmpty + kTile.v_stages,
                       kQEmpty = kQFull + kTile.q_buffers;
  static_assert(kQEmpty + kTile.q_buffers == num_transposed_barriers(kTile));
};

// The numbers of the CTA's items, in shared memory: the producer of K stores each before it loads
// it, others wait for it.
struct ItemList {
  u32 items, again;

  __device__ __forceinline__ void add(int k, int item) const {
    asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(items + 4 * static_cast<u32>(k)),
                 "r"(item)
                 : "memory");
  }
  __device__ __forceinline__ int get(int k) const {
    int item;
    do {
      asm volatile("ld.acquire.cta.shared.u32 %0, [%1];"
                   : "=r"(item)
                   : "r"(items + 4 * static_cast<u32>(k))
                   : "memory");
    } while (item < 0);
    return item;
  }
  // Where rows of an item are reported.
  __device__ __forceinline__ u32 word(int k) const { return again + 4 * static_cast<u32>(k); }
  static __device__ __forceinline__ void report(u32 word, u32 rows) {
    asm volatile("red.shared.or.b32 [%0], %1;" ::"r"(word), "r"(rows) : "memory");
  }
};
template <Tile kTile>
__device__ __forceinline__ ItemList item_list(u32 smem) {
  constexpr TransposedSmem kSmem = transposed_smem(kTile);
  return {smem + static_cast<u32>(kSmem.offset_items), smem + static_cast<u32>(kSmem.offset_again)};
}
// More than there are.
inline constexpr int kNoItem = 0x7fffffff;

// Calls compute(item, rows, word) for the items of the CTA, in order, and once more for those of
// which some rows are computed again, bit r of `rows` for row r; 0 the first time. `word`: where
// they are reported; compute() says whether any was. next(k): the number of item k the first time.
// All threads of the CTA call this.
template <Tile kTile, class Next, class Compute>
__device__ __forceinline__ void for_each_item(const Params& p, u32 smem, bool reports, Next next,
                                              Compute compute) {
  const ItemList list = item_list<kTile>(smem);
  bool is_again = false, has_reports = false;
#pragma unroll 1
  do {
    SplitItems<kTile> items(p, reports && !is_again);
    SplitItem item;
#pragma unroll 1
    for (int k = 0; items.find(is_again ? list.get(k) : next(k), item); ++k) {
      const u32 rows = is_again && item.has_keys() ? load_shared(list.word(k)) : 0;
      if (!is_again || rows != 0) has_reports |= compute(item, rows, list.word(k));
    }
    is_again = !is_again && __syncthreads_or(has_reports ? 1 : 0) != 0;
  } while (is_again);
}

}  // namespace headrace::cuda::sm90::fwd
