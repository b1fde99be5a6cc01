// Blocks of 128 padded rows (padded_rows.h) on the device.
#pragma once

#include "backends/cuda/common/lengths.cuh"
#include "backends/cuda/common/padded_rows.h"

namespace headrace::cuda {

// 128 rows of one head of one sequence, or padding between that sequence and the next.
struct PaddedBlock {
  Sequence sequence;
  std::int64_t batch_idx, head;
  std::int64_t first_row;   // index in the sequence
  std::int64_t padded_row;  // index of the first row in the padded layout
  int num_rows;             // valid rows, up to 128; may be negative
  bool is_filled;           // false: past the rows that the sequence owns
};

__device__ inline PaddedBlock padded_block(const Sizes& sizes, const Lengths& lengths,
                                           std::int64_t block_idx, bool reports) {
  const BlockCoord place = block_coord(sizes, block_idx);
  PaddedBlock x;
  x.batch_idx = place.batch_idx;
  x.head = place.head;
  x.sequence =
      device_sequence(sizes, lengths, x.batch_idx, reports && place.head == 0 && place.block == 0);
  x.first_row = place.block * kRowPadding;
  x.padded_row = first_padded_row(sizes, x.batch_idx, x.sequence.row_q) + x.first_row;
  const std::int64_t end =
      first_padded_row(sizes, x.batch_idx + 1, x.sequence.row_q + x.sequence.seqlen_q);
  x.num_rows = static_cast<int>(min(x.sequence.seqlen_q - x.first_row, kRowPadding));
  x.is_filled = x.padded_row < end;
  return x;
}

}  // namespace headrace::cuda
