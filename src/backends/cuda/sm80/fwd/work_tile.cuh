// The work tile of a CTA: one thread decodes it into shared memory.
#pragma once

#include "backends/cuda/common/lengths.cuh"
#include "backends/cuda/device/types.cuh"
#include "backends/cuda/sm80/fwd/params.h"

namespace headrace::cuda::sm80::fwd {

// Query and head in the group of a row.
struct RowCoord {
  int q_idx, head;
};

// Keys [begin, end).
struct KeySpan {
  int begin, end;
};

// A k-block is the tile of keys of one iteration. Indices count from first_block, the first k-block
// that a row of the CTA sees. visible: some row of the warp sees a key of it; unmasked: every row
// of the warp sees all of its keys.
struct alignas(16) KBlocks {
  int visible_begin, visible_end, unmasked_begin, unmasked_end;
  int first_block, num_blocks;  // of the CTA
};

// In shared memory, because registers are scarce and the main loop needs little of it.
struct WorkTile {
  KBlocks warps[kMaxWarps];
  Sequence sequence;
  std::int64_t batch_idx, kv_head;
  std::int64_t k_offset, v_offset;        // of the sequence's first row; pages: of page 0's
  int seqlen_q, seqlen_k;                 // of the sequence
  int first_row, num_rows;                // of the tile, in the sequence; 0 rows: no work
  int split_idx, split_begin, split_end;  // keys; all of them without a split
  bool is_split;
};
static_assert(sizeof(WorkTile) <= kWorkTileBytes);

// Finds the rows of a work tile and its split of the keys.
__device__ inline void decode_work_tile(const Params& c, Tile tile, std::int64_t work_idx,
                                        WorkTile& x) {
  const Sizes& p = c.split.sizes;
  const auto [head_idx, idx] = work_coord(c.order, work_idx);
  x.batch_idx = quotient(head_idx, p.num_kv_heads);
  x.kv_head = head_idx - x.batch_idx * p.num_kv_heads;
  const bool reports = x.kv_head == 0 && idx == 0;
  const Sequence sequence =
      sequence_with_used_keys(p, c.split.lengths, c.split.used_keys, x.batch_idx, reports);
  x.sequence = sequence;
  const bool has_pages = c.pages.block_table != nullptr;
  const std::int64_t entry = has_pages ? 0 : x.batch_idx, row = has_pages ? 0 : sequence.row_k;
  x.k_offset = row_offset(c.k, entry, row, x.kv_head);
  x.v_offset = row_offset(c.v, entry, row, x.kv_head);
  x.seqlen_q = static_cast<int>(sequence.seqlen_q);
  x.seqlen_k = static_cast<int>(sequence.seqlen_k);
  SplitPlan plan{1, sequence.seqlen_k};
  if (c.split.o_partial != nullptr)
    plan = plan_splits(c.split.rule, tile, sequence.seqlen_q, sequence.seqlen_k);
  x.is_split = plan.num_splits > 1;
  const int all_rows = x.seqlen_q * c.group;
  const int num_tiles = (all_rows + tile.rows() - 1) / tile.rows();
  // The longest causal tile first.
  x.first_row = x.is_split ? 0 : (num_tiles - 1 - idx) * tile.rows();
  const bool exists = idx < (x.is_split ? static_cast<int>(plan.num_splits) : num_tiles);
  x.num_rows = exists ? min(all_rows - x.first_row, tile.rows()) : 0;
  x.split_idx = x.is_split ? idx : 0;
  x.split_begin = x.split_idx * static_cast<int>(plan.split_keys);
  x.split_end = static_cast<int>(min(x.split_begin + plan.split_keys, sequence.seqlen_k));
}

}  // namespace headrace::cuda::sm80::fwd
