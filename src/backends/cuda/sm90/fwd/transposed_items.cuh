// What a CTA of the transposed kernel computes, one after the other: splits of tile heads.
#pragma once

#include "backends/cuda/common/lengths.cuh"
#include "backends/cuda/device/barrier.cuh"
#include "backends/cuda/sm90/element.cuh"
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

// What item i is. All lanes of a warp call it.
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
  // 32 sequences at a time, from where the last search ended, unless i lies before.
  __device__ __forceinline__ bool find_by_lengths(int i, SplitItem& item) {
    if (i < before_) first_ = before_ = 0;
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

// Full and empty of the stages of K, V and Q, and of the slots of items.
template <Tile kTile>
struct TransposedBarriers {
  static constexpr int kKFull = 0, kKEmpty = kTile.k_stages, kVFull = 2 * kTile.k_stages,
                       kVEmpty = kVFull + kTile.v_stages, kQFull = kVEmpty + kTile.v_stages,
                       kQEmpty = kQFull + kTile.q_buffers, kItemFull = kQEmpty + kTile.q_buffers,
                       kItemEmpty = kItemFull + kItemSlots;
  // Of a split in parts: S of each k-block, from the right; what the parts agree on; P of a
  // k-block, which a warpgroup stores and two others read.
  static constexpr int kScores = kItemEmpty + kItemSlots,
                       kAgreed = kScores + blocks_of_split(kTile), kProbsFull = kAgreed + 1,
                       kProbsEmpty = kProbsFull + num_prob_buffers(kTile);
  static_assert(kScores + num_part_barriers(kTile) == num_transposed_barriers(kTile));
  // Of a slot: the other producers have read it, the consumers are done with the item.
  static constexpr u32 arrivals(int i) {
    if (kTile.in_parts && i >= kProbsEmpty) return 8;  // warps
    if (kTile.in_parts && i >= kProbsFull) return 4;
    if (i < kKEmpty || (i >= kVFull && i < kVEmpty)) return stages_of_barrier(kTile);
    return i < kItemEmpty || i >= kScores ? 1 : static_cast<u32>(2 * transposed_loaders(kTile));
  }
};

// What the producer of K publishes: an item, whose batch is kNoItem behind the last; where its rows
// are reported that must be computed again; and which are, bit r for row r, or 0.
struct alignas(16) PublishedItem {
  SplitItem item;
  u32 word, rows;

  // All words, for released_behind(): which of them a load has is the compiler's choice.
  __device__ __forceinline__ u32 loaded() const {
    u32 words[kItemBytes / 4], all = 0;
    memcpy(words, this, kItemBytes);
#pragma unroll
    for (const u32 x : words) all ^= x;
    return all;
  }
};
static_assert(sizeof(PublishedItem) == kItemBytes);
inline constexpr int kNoItem = -1;

template <Tile kTile>
class PublishedItems {
  using B = TransposedBarriers<kTile>;

 public:
  __device__ __forceinline__ explicit PublishedItems(u32 smem) : smem_(smem) {}

  // By all threads of the producer and of the others, of which one arrives.
  __device__ __forceinline__ void publish(const PublishedItem& x, bool arrives) {
    mbarrier_wait(barrier(B::kItemEmpty), slot_.parity ^ 1);
    if (arrives) {
      Chunk chunks[kItemBytes / 16];
      memcpy(chunks, &x, kItemBytes);
#pragma unroll
      for (int i = 0; i < kItemBytes / 16; ++i) store_chunk(address(i), chunks[i]);
      mbarrier_arrive(barrier(B::kItemFull));
    }
    slot_.next();
  }
  // Until all that were published are done.
  __device__ __forceinline__ void wait_for_all() const {
    PublishedItems last = *this;
    for (int i = 0; i < kItemSlots; ++i, last.slot_.next())
      mbarrier_wait(last.barrier(B::kItemEmpty), last.slot_.parity ^ 1);
  }

  __device__ __forceinline__ PublishedItem read() const {
    mbarrier_wait(barrier(B::kItemFull), slot_.parity);
    Chunk chunks[kItemBytes / 16];
#pragma unroll
    for (int i = 0; i < kItemBytes / 16; ++i) chunks[i] = load_chunk(address(i));
    PublishedItem x;
    memcpy(&x, chunks, kItemBytes);
    return x;
  }
  // `loaded`: what was read last from shared memory.
  __device__ __forceinline__ void release(u32 loaded, bool arrives) {
    const u32 empty = released_behind(loaded, barrier(B::kItemEmpty));
    if (arrives) mbarrier_arrive(empty);
    slot_.next();
  }

 private:
  __device__ __forceinline__ u32 address(int chunk) const {
    return smem_ + static_cast<u32>(transposed_smem(kTile).offset_slots + kItemBytes * slot_.stage +
                                    16 * chunk);
  }
  __device__ __forceinline__ u32 barrier(int first) const {
    return smem_ +
           static_cast<u32>(transposed_smem(kTile).offset_barriers + 8 * (first + slot_.stage));
  }

  const u32 smem_;
  Ring<kItemSlots> slot_;
};

}  // namespace headrace::cuda::sm90::fwd
