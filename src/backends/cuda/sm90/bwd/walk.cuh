// Which keys a CTA has and which blocks of queries it meets, in which order: the same for the
// thread that copies and for those that compute.
#pragma once

#include "backends/cuda/common/lengths.cuh"
#include "backends/cuda/sm90/bwd/config.h"
#include "backends/cuda/sm90/bwd/params.h"
#include "backends/cuda/sm90/bwd/turns.h"

namespace headrace::cuda::sm90::bwd {

// The keys of a CTA: of a KV head of a sequence.
struct KeyBlock {
  int batch_idx, kv_head, block, first_key;
  int row_q, row_k, seqlen_q, seqlen_k;
  // Query q sees the keys from q + left to q + right.
  int left, right;
};

template <Tile kTile>
__device__ __forceinline__ int num_key_blocks(const KeyBlock& b) {
  return (b.seqlen_k + kTile.keys - 1) / kTile.keys;
}

// May lie outside of the sequence: see exists().
template <Tile kTile>
__device__ __forceinline__ KeyBlock key_block(const Params& p) {
  const Problem& problem = p.rows.problem;
  const auto x = static_cast<int>(blockIdx.x), y = static_cast<int>(blockIdx.y),
             z = static_cast<int>(blockIdx.z);
  KeyBlock b;
  if (p.section > 0) {
    const int head = z * p.section + x, kv_heads = static_cast<int>(problem.num_kv_heads);
    b.batch_idx = head / kv_heads;
    b.kv_head = head - b.batch_idx * kv_heads;
    b.block = y;
  } else {
    b.batch_idx = z;
    b.kv_head = y;
    b.block = x;
  }
  // Lengths out of bounds were reported by the kernel before.
  const Sequence s = b.batch_idx < problem.batch
                         ? device_sequence(problem, p.rows.args.ragged, b.batch_idx, false, nullptr)
                         : Sequence{};
  b.row_q = static_cast<int>(s.row_q);
  b.row_k = static_cast<int>(s.row_k);
  b.seqlen_q = static_cast<int>(s.seqlen_q);
  b.seqlen_k = static_cast<int>(s.seqlen_k);
  if (p.has_turns && p.ring == 0) b.block = num_key_blocks<kTile>(b) - 1 - b.block;
  b.first_key = b.block * kTile.keys;
  const int diagonal = p.is_top_left ? 0 : b.seqlen_k - b.seqlen_q;
  b.left = diagonal - p.window_left;
  b.right = diagonal + p.window_right;
  return b;
}

__device__ __forceinline__ bool exists(const KeyBlock& b) {
  return b.first_key >= 0 && b.first_key < b.seqlen_k;
}

template <Tile kTile>
__device__ __forceinline__ Ring ring_of_sequence(const Params& p, const KeyBlock& b) {
  return ring_of(kTile, num_key_blocks<kTile>(b), (b.seqlen_q + kTile.queries - 1) / kTile.queries,
                 p.ring);
}
// How many CTAs add to dQ of a block of queries before this one, where they take turns.
template <Tile kTile>
__device__ __forceinline__ int turn_at(const Params& p, const KeyBlock& b, int query_block) {
  if (p.ring > 0) return ring_turn(ring_of_sequence<kTile>(p, b), b.block, query_block);
  const int last_query = min((query_block + 1) * kTile.queries, b.seqlen_q) - 1;
  return diagonal_turn(kTile, num_key_blocks<kTile>(b), b.block, last_query + b.right);
}

// A block of queries of a head of the group.
struct Step {
  int head, block;
  bool exists;
};

// Blocks [first, first + count) of the queries that see some key of the block, for each head of the
// group in turn, in a circle from the first plus `turn` on.
template <Tile kTile>
class Walk {
 public:
  __device__ __forceinline__ Walk(const Params& p, const KeyBlock& b) : heads_(p.group) {
    const int last_key = min(b.first_key + kTile.keys, b.seqlen_k) - 1;
    const int first_query = max(b.first_key - b.right, 0);
    const int end_query = min(last_key - b.left + 1, b.seqlen_q);
    first_ = first_query / kTile.queries;
    count_ = end_query > first_query ? (end_query + kTile.queries - 1) / kTile.queries - first_ : 0;
    // Neighbours begin at different queries, so that they add to different parts of dQ. Behind a
    // diagonal they do anyway.
    const bool is_square = b.first_key <= b.right && last_key - b.left >= b.seqlen_q - 1;
    turn_ = is_square && count_ > 0 ? b.first_key / kTile.queries % count_ : 0;
    if (p.has_turns) turn_ = p.ring > 0 ? ring_start(ring_of_sequence<kTile>(p, b), b.block) : 0;
  }
  __device__ __forceinline__ int num_steps() const { return heads_ * count_; }
  __device__ __forceinline__ Step at(int step) const {
    const int head = heads_ == 1 ? 0 : step / count_;
    const int block = step - head * count_ + turn_;
    return {head, first_ + (block < count_ ? block : block - count_), step < num_steps()};
  }

 private:
  int heads_, first_, count_, turn_;
};

}  // namespace headrace::cuda::sm90::bwd
