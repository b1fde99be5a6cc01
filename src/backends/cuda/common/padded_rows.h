// The rows of a backward in the workspace. A head has padded_rows() rows. The rows of a sequence
// begin at a multiple of 128: a tile of 128 rows, or of a divisor of 128, never spans two
// sequences, and bulk copies of it are aligned.
#pragma once

#include "backends/cuda/common/constants.h"
#include "backends/cuda/common/kernel_args.h"
#include "base/math.h"

namespace headrace::cuda {

inline constexpr std::int64_t kRowPadding = 128;

// Padded rows of one head.
constexpr std::int64_t padded_rows(const Sizes& p) {
  if (p.is_ragged) return round_up(p.total_q + kRowPadding * p.batch, kRowPadding);
  return p.batch * round_up(p.seqlen_q, kRowPadding);
}

// First padded row of a sequence. `row_q` is its first packed row (dense: 0). With batch_idx =
// batch and row_q = total_q it is the end of all filled rows. Whatever the lengths, consecutive
// sequences begin at least the first one's length, rounded up, apart.
constexpr std::int64_t first_padded_row(const Sizes& p, std::int64_t batch_idx,
                                        std::int64_t row_q) {
  if (p.is_ragged) return (row_q + kRowPadding * batch_idx) / kRowPadding * kRowPadding;
  return batch_idx * round_up(p.seqlen_q, kRowPadding);
}

// Upper bound of the blocks of 128 rows between the beginnings of two sequences.
constexpr std::int64_t padded_blocks_per_seq(const Sizes& p) {
  return ceil_div(p.seqlen_q, kRowPadding) + (p.is_ragged ? 1 : 0);
}

// Blocks of all heads: up to kMaxPaddedBlocks, because the kernels divide in 32 bits.
inline constexpr std::int64_t kMaxPaddedBlocks = (std::int64_t{1} << 32) - 1;
constexpr std::int64_t num_padded_blocks(const Sizes& p) {
  return p.batch * p.num_heads * padded_blocks_per_seq(p);
}
// Coordinates of a block of 128 rows. Heads vary fastest: in a contiguous BSHD layout CTAs that run
// together then read whole pages.
struct BlockCoord {
  std::int64_t batch_idx, block, head;
};
constexpr BlockCoord block_coord(const Sizes& p, std::int64_t block_idx) {
  const auto heads = static_cast<std::uint32_t>(p.num_heads);
  const auto partial = static_cast<std::uint32_t>(padded_blocks_per_seq(p));
  const auto idx = static_cast<std::uint32_t>(block_idx), row_of_blocks = idx / heads;
  const std::uint32_t batch_idx = row_of_blocks / partial;
  return {batch_idx, row_of_blocks - batch_idx * partial, idx - row_of_blocks * heads};
}

// Index in delta and lse; in dq_accum the index of a row of dq_accum_cols floats.
constexpr std::int64_t padded_offset(const Sizes& p, std::int64_t head, std::int64_t padded_row) {
  return head * padded_rows(p) + padded_row;
}
// Floats of delta, and of lse.
constexpr std::int64_t padded_elements(const Sizes& p) { return p.num_heads * padded_rows(p); }

// max |K| and max |V| over some keys of a KV head; NaN if one is NaN.
struct KvAbsMax {
  float k, v;
};
// Chunks of kRowPadding keys of the longest sequence.
constexpr std::int64_t num_key_chunks(const Sizes& p) { return ceil_div(p.seqlen_k, kRowPadding); }
constexpr std::int64_t num_kv_abs_max(const Sizes& p) {
  return p.batch * p.num_kv_heads * num_key_chunks(p);
}

// Fixed-point dQ. The dQ of a row and each partial sum of it are bounded by
//   sum P |dP - D| max |K|  <=  (sum |dO| max |V| + |D|) max |K|
// The scale maps that bound to at most 2^30, so that the sum of the rounded contributions fits a
// 32-bit integer. (An intermediate sum may wrap; the final sum is correct.)
inline constexpr int kFixedPointBits = 30;
// Index of a row's scale: rows r and r + 8 of 16, which one thread holds in an accumulator, are
// adjacent.
constexpr std::int64_t dq_scale_index(std::int64_t row) {
  return row / 16 * 16 + row % 8 * 2 + row / 8 % 2;
}

// The rows of a backward in the workspace.
struct BwdRows {
  float* delta;     // [num_heads, padded_rows]: (rowsum(dO * O) - dlse) * delta_scale; 0 in padding
  float* lse;       // [num_heads, padded_rows]: lse * lse_scale; lse_scale * +inf in padding and in
                    // empty rows, so that P = exp(S - lse) is 0
  float* dq_accum;  // [num_heads, padded_rows, dq_accum_cols]: sums of dS K; may be null
  std::int64_t dq_accum_cols;  // a multiple of 4
  // Fixed-point dQ (deterministic): integer sums do not depend on the order of the additions. Null:
  // float sums.
  // [num_heads, padded_rows] by dq_scale_index: fixed-point units per 1.0 of dq, a power of 2,
  // stored as the upper half of a float. NaN if a NaN or an infinity may reach the row's dq.
  std::uint16_t* dq_scale = nullptr;
};

}  // namespace headrace::cuda
