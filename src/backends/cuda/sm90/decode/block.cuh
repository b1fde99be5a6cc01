// A block of 16 keys: its scores, masked, and its values.
#pragma once

#include "backends/cuda/sm90/decode/softmax.cuh"

namespace headrace::cuda::sm90::decode {

// By one warp.
template <class Element, int kRowBlocks>
class BlockSums {
 public:
  __device__ BlockSums(const Params& p, int lane)
      : scale_log2_(p.scale_log2),
        lane_(lane),
        reader_(lane),
        queries_(query_bytes<kRowBlocks>(p, lane)) {}

  // Scores and maxima of the block at `key`, with K in `block`. Returns a word that depends on its
  // loads.
  template <int kDim>
  __device__ __forceinline__ u32 scores(const QueryFragments<kDim, 8 * kRowBlocks>& queries,
                                        u32 block, float (&s)[kRowBlocks][4]) const {
    return block_scores<Element>(reader_, queries, block, s);
  }
  __device__ __forceinline__ void mask_and_max(const Item& item, float (&s)[kRowBlocks][4], int key,
                                               float (&top)[kRowBlocks][2]) const {
    if (needs_mask(item, key)) mask_scores<kRowBlocks>(item, queries_, s, key, lane_);
    block_max<kRowBlocks>(s, top);
  }
  // Scores to O, with V in `block`.
  template <int kTiles>
  __device__ __forceinline__ u32 add(const Item& item, SplitSums<Element, kRowBlocks, kTiles>& sums,
                                     float (&s)[kRowBlocks][4], const float (&top)[kRowBlocks][2],
                                     int key, u32 block) const {
    u32 p[kRowBlocks][2];
    sums.add_probs(s, top, scale_log2_, p);
    const int pair = key + 2 * (lane_ & 3);
    if (needs_mask(item, key))
      return add_values<Element, true>(reader_, block, p,
                                       {keep_pair(item, pair), keep_pair(item, pair + 8)}, sums.o);
    return add_values<Element, false>(reader_, block, p, {0, 0}, sums.o);
  }

 private:
  // Whether some row does not see all keys of the block.
  __device__ __forceinline__ static bool needs_mask(const Item& item, int key) {
    const int all_begin = max(item.left + item.seqlen_q - 1, 0);
    return key < all_begin || key + kBlockKeys > min(item.right, item.seqlen_k);
  }
  __device__ __forceinline__ static u32 keep_pair(const Item& item, int key) {
    const auto is_seen = [&](int x) { return x >= item.first_key && x < item.end_key; };
    return (is_seen(key) ? 0xffffu : 0u) | (is_seen(key + 1) ? 0xffff0000u : 0u);
  }

  const float scale_log2_;
  const int lane_;
  const BlockReader reader_;
  const u32 queries_;
};

// The ring of blocks of a consumer warp.
template <class Smem, int kStages>
class WarpRing {
 public:
  __device__ WarpRing(const Smem& smem, int warp, int lane)
      : smem_(smem), warp_(warp), lane_(lane) {}

  // The next block, when it has arrived.
  __device__ __forceinline__ u32 wait() const {
    mbarrier_wait(smem_.full(ring_.stage, warp_), ring_.parity);
    return smem_.block(ring_.stage, warp_);
  }
  // `loaded` depends on all loads of the block, K or V.
  template <bool kIsV>
  __device__ __forceinline__ void release(u32 loaded) {
    const u32 empty = released_behind(loaded, smem_.empty(ring_.stage, warp_));
    __syncwarp();
    if (lane_ == 0) mbarrier_arrive(empty);
    ring_.next();
  }

 private:
  const Smem smem_;
  const int warp_, lane_;
  Ring<kStages> ring_;
};

// Adds the blocks of a split, from the ring: K, then V of each that a row sees.
template <class Element, int kDim, int kRows, class BlockRing>
__device__ __forceinline__ void sum_split(const Item& item,
                                          const BlockSums<Element, kRows / 8>& blocks,
                                          const QueryFragments<kDim, kRows>& queries,
                                          BlockRing& ring, int first_key,
                                          SplitSums<Element, kRows / 8, kDim / 16>& sums) {
#pragma unroll 1
  for (int i = 0; i < kSplitBlocks; ++i) {
    const int key = first_key + i * kBlockKeys;
    if (!item.sees_block(key)) continue;
    float s[kRows / 8][4], top[kRows / 8][2];
    ring.template release<false>(blocks.scores(queries, ring.wait(), s));
    blocks.mask_and_max(item, s, key, top);
    ring.template release<true>(blocks.add(item, sums, s, top, key, ring.wait()));
  }
}

}  // namespace headrace::cuda::sm90::decode
