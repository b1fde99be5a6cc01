// The work tile of a CTA of the backward: one thread decodes it into shared memory.
#pragma once

#include "backends/cuda/common/lengths.cuh"
#include "backends/cuda/device/types.cuh"
#include "backends/cuda/sm80/bwd/params.h"

namespace headrace::cuda::sm80::bwd {

// A key tile of one (batch entry, KV head) and the query rows that see it.
struct WorkTile {
  Sequence sequence;
  std::int64_t batch_idx, kv_head;
  std::int64_t padded_row;  // padded row of the sequence's first row
  std::int64_t head_rows;   // padded rows per head
  const void *q, *dout;     // at the sequence's first row, head 0
  int seqlen_q, seqlen_k;
  int first_key, key_tile;
  Band band;
  QueryRange rows;
};
static_assert(sizeof(WorkTile) <= kWorkTileBytes);

__device__ inline void set_key_tile(Tile tile, int key_tile, WorkTile& x) {
  x.key_tile = key_tile;
  x.first_key = key_tile * tile.keys;
  x.rows = query_range(x.band, x.first_key, tile.keys, x.seqlen_q, x.seqlen_k);
}

__device__ inline void set_sequence(const GradParams& c, std::int64_t batch_idx, WorkTile& x) {
  const Sizes& p = c.sizes;
  x.batch_idx = batch_idx;
  x.sequence = device_sequence(p, c.lengths, batch_idx, false);
  x.padded_row = first_padded_row(p, batch_idx, x.sequence.row_q);
  x.head_rows = padded_rows(p);
  const auto first_of = [&](const Operand& from) -> const void* {
    return static_cast<const char*>(from.data) +
           row_offset(from, batch_idx, x.sequence.row_q, 0) * c.element_bytes;
  };
  x.q = first_of(c.q);
  x.dout = first_of(c.dout);
  x.seqlen_q = static_cast<int>(x.sequence.seqlen_q);
  x.seqlen_k = static_cast<int>(x.sequence.seqlen_k);
  x.band = band_of(c.window, x.sequence.seqlen_q, x.sequence.seqlen_k);
}

// With a causal mask the first keys are seen by the most rows: their tile is the longest and comes
// first. With dq_semaphores the last keys come first, because the other tiles wait for them.
__device__ inline void decode_work_tile(const Params& c, Tile tile, std::int64_t work_idx,
                                        WorkTile& x) {
  const auto [head_idx, idx] = work_coord(c.order, work_idx);
  const std::int64_t batch_idx = quotient(head_idx, c.grads.sizes.num_kv_heads);
  set_sequence(c.grads, batch_idx, x);
  x.kv_head = head_idx - batch_idx * c.grads.sizes.num_kv_heads;
  const int num_tiles = (x.seqlen_k + tile.keys - 1) / tile.keys;
  set_key_tile(tile, c.dq_semaphores != nullptr && idx < num_tiles ? num_tiles - 1 - idx : idx, x);
}

}  // namespace headrace::cuda::sm80::bwd
