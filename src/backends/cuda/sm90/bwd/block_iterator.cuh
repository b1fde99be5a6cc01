// The keys of a CTA and its query blocks, in order: the same for the producer and the consumers.
#pragma once

#include "backends/cuda/common/lengths.cuh"
#include "backends/cuda/sm90/bwd/config.h"
#include "backends/cuda/sm90/bwd/params.h"

namespace headrace::cuda::sm90::bwd {

// The keys of a CTA: a block of one KV head of one sequence.
struct KeyBlock {
  int batch_idx, kv_head, block, first_key;
  int row_q, row_k, seqlen_q, seqlen_k;
  // Query q sees keys [q + left, q + right].
  int left, right;
};

// Block `block` of the keys of a sequence.
template <Tile kTile>
__device__ __forceinline__ KeyBlock key_block_of(const BlockParams& p, const Sequence& s,
                                                 int batch_idx, int kv_head, int block) {
  KeyBlock b;
  b.batch_idx = batch_idx;
  b.kv_head = kv_head;
  b.block = block;
  b.row_q = static_cast<int>(s.row_q);
  b.row_k = static_cast<int>(s.row_k);
  b.seqlen_q = static_cast<int>(s.seqlen_q);
  b.seqlen_k = static_cast<int>(s.seqlen_k);
  b.first_key = b.block * kTile.keys;
  const int diagonal = p.is_top_left ? 0 : b.seqlen_k - b.seqlen_q;
  b.left = diagonal - p.window_left;
  b.right = diagonal + p.window_right;
  return b;
}
// The block of this CTA. May lie outside of the sequence: see exists().
template <Tile kTile>
__device__ __forceinline__ KeyBlock key_block(const BlockParams& p) {
  const auto x = static_cast<int>(blockIdx.x), y = static_cast<int>(blockIdx.y),
             z = static_cast<int>(blockIdx.z);
  const int kv_heads = static_cast<int>(p.sizes.num_kv_heads), head = z * p.section + x;
  const int batch_idx = p.section > 0 ? head / kv_heads : z;
  const int kv_head = p.section > 0 ? head - batch_idx * kv_heads : y;
  // bwd_preprocess has reported lengths out of bounds.
  const Sequence s = batch_idx < p.sizes.batch
                         ? device_sequence(p.sizes, p.lengths, batch_idx, false)
                         : Sequence{};
  return key_block_of<kTile>(p, s, batch_idx, kv_head, p.section > 0 ? y : x);
}

__device__ __forceinline__ bool exists(const KeyBlock& b) {
  return b.first_key >= 0 && b.first_key < b.seqlen_k;
}

// A block of queries of a head of the group: one iteration of the main loop.
struct QueryBlock {
  int head, block;
  int padded;  // index among the blocks of padded rows: of D, the lse, dQ
};

// The query blocks [first, first + count) that see some key of the block, for each head of the
// group in turn, rotated to start at first + `rotation`. A block is derived from the one before by
// additions: 64-bit products took longer than the exponentials beside them.
template <Tile kTile>
class BlockIterator {
 public:
  __device__ __forceinline__ BlockIterator(const BlockParams& p, const KeyBlock& b)
      : heads_(p.group) {
    const int last_key = min(b.first_key + kTile.keys, b.seqlen_k) - 1;
    const int first_query = max(b.first_key - b.right, 0);
    const int end_query = min(last_key - b.left + 1, b.seqlen_q);
    const int first = first_query / kTile.queries;
    count_ = end_query > first_query ? (end_query + kTile.queries - 1) / kTile.queries - first : 0;
    end_ = first + count_;
    // Neighbouring CTAs start at different queries, so that they add to different parts of dQ. With
    // a causal mask they do anyway.
    const bool is_square = b.first_key <= b.right && last_key - b.left >= b.seqlen_q - 1;
    const int rotation = is_square && count_ > 0 ? b.first_key / kTile.queries % count_ : 0;
    start_ = first + rotation;
    const std::int64_t row = padded_offset(p.sizes, std::int64_t{b.kv_head} * p.group,
                                           first_padded_row(p.sizes, b.batch_idx, b.row_q));
    padded_ = static_cast<int>(row / kTile.queries) + start_;
    blocks_per_head_ = static_cast<int>(padded_rows(p.sizes) / kTile.queries);
  }
  __device__ __forceinline__ int num_iterations() const { return heads_ * count_; }
  __device__ __forceinline__ QueryBlock first() const { return {0, start_, padded_}; }
  __device__ __forceinline__ QueryBlock after(const QueryBlock& iteration) const {
    QueryBlock next{iteration.head, iteration.block + 1, iteration.padded + 1};
    if (next.block == end_) {
      next.block -= count_;
      next.padded -= count_;
    }
    if (next.block == start_) {
      ++next.head;
      next.padded += blocks_per_head_;
    }
    return next;
  }
  __device__ __forceinline__ bool has(const QueryBlock& iteration) const {
    return iteration.head < heads_;
  }
  // Whether the CTA adds to dQ of a query block (of each head of the group).
  __device__ __forceinline__ bool visits(int block) const {
    return block >= end_ - count_ && block < end_;
  }

 private:
  int heads_, count_, end_, start_;
  int padded_, blocks_per_head_;
};

}  // namespace headrace::cuda::sm90::bwd
