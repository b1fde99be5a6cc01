// What a backward needs of its query rows before and after the main kernel: D and the lse in the
// order in which tiles read them, dQ from its float sums, the gradients of the sinks.
//
// A head has padded_rows() rows, and those of a sequence begin at a multiple of 128: tiles of 128
// rows or a part of that never meet two sequences, and bulk copies of them are aligned.
#pragma once

#include "backends/cuda/common/constants.h"
#include "base/math.h"
#include "core/kernel.h"

namespace headrace::cuda {

inline constexpr std::int64_t kRowPadding = 128;

// Rows of one head.
constexpr std::int64_t padded_rows(const Problem& p) {
  if (p.is_ragged) return round_up(p.total_q + kRowPadding * p.batch, kRowPadding);
  return p.batch * round_up(p.seqlen_q, kRowPadding);
}

// Where the rows of a sequence begin, `row_q` being its first packed row (dense: 0). With batch_idx
// = batch and row_q = total_q it is the end of all rows that are filled. The room between two
// sequences is at least the first one's length, rounded up, whatever the lengths are.
constexpr std::int64_t first_padded_row(const Problem& p, std::int64_t batch_idx,
                                        std::int64_t row_q) {
  if (p.is_ragged) return (row_q + kRowPadding * batch_idx) / kRowPadding * kRowPadding;
  return batch_idx * round_up(p.seqlen_q, kRowPadding);
}

// The most parts of 128 rows that lie between the beginnings of two sequences.
constexpr std::int64_t padded_blocks_per_seq(const Problem& p) {
  return ceil_div(p.seqlen_q, kRowPadding) + (p.is_ragged ? 1 : 0);
}

// Of all heads: up to kMaxPaddedBlocks, as the kernels divide in 32 bits.
inline constexpr std::int64_t kMaxPaddedBlocks = (std::int64_t{1} << 32) - 1;
constexpr std::int64_t num_padded_blocks(const Problem& p) {
  return p.batch * p.num_heads * padded_blocks_per_seq(p);
}
// A part of 128 rows of a head of a sequence. Heads first: where their rows follow each other in
// memory, CTAs that run together read whole pages.
struct BlockCoord {
  std::int64_t batch_idx, block, head;
};
constexpr BlockCoord block_coord(const Problem& p, std::int64_t block_idx) {
  const auto heads = static_cast<std::uint32_t>(p.num_heads);
  const auto partial = static_cast<std::uint32_t>(padded_blocks_per_seq(p));
  const auto idx = static_cast<std::uint32_t>(block_idx), row_of_blocks = idx / heads;
  const std::uint32_t batch_idx = row_of_blocks / partial;
  return {batch_idx, row_of_blocks - batch_idx * partial, idx - row_of_blocks * heads};
}

// Index in d and lse; in dq it counts rows of dq_accum_cols.
constexpr std::int64_t padded_offset(const Problem& p, std::int64_t head, std::int64_t padded_row) {
  return head * padded_rows(p) + padded_row;
}
// Floats of d, and of lse.
constexpr std::int64_t padded_elements(const Problem& p) { return p.num_heads * padded_rows(p); }

// How the float sums of dQ lie: as rows, or in blocks of 8 rows and 16 columns, row by row, a block
// in the order in which the lanes of a warp hold two accumulators of 8 columns: lane 4 g + t has
// row g, columns 2 t, 2 t + 1, 2 t + 8, 2 t + 9.
enum class DqAccumLayout { row_major, fragments };

// The largest elements of K and V of some keys of a KV head, without signs; NaN where there is one.
struct KvAbsMax {
  float k, v;
};
// Parts of kRowPadding keys, as many as the longest sequence has.
constexpr std::int64_t num_key_chunks(const Problem& p) {
  return ceil_div(p.seqlen_k, kRowPadding);
}
constexpr std::int64_t num_kv_abs_max(const Problem& p) {
  return p.batch * p.num_kv_heads * num_key_chunks(p);
}

// dQ in fixed point. A row's dQ and each of its parts are smaller than
//   sum P |dP - D| max |K|  <=  (sum |dO| max |V| + |D|) max |K|
// and the scale takes that to at most 2^30, so that sums of parts fit an integer, rounded as they
// are. (A sum on the way may not: it is right again once the rest is there.)
inline constexpr int kFixedPointBits = 30;
// Of scales of rows: rows r and r + 8 of 16, which a thread has of an accumulator, side by side.
constexpr std::int64_t dq_scale_index(std::int64_t row) {
  return row / 16 * 16 + row % 8 * 2 + row / 8 % 2;
}

struct BwdPreprocessParams {
  Problem problem;
  AttentionArgs args;
  float* delta;  // [num_heads, padded_rows]: rowsum(dout * out) - dlse, times delta_scale; 0 where
                 // there is no row
  float* lse;    // [num_heads, padded_rows]: times lse_scale; that times +inf where a row is empty
                 // or missing, so that its P = exp(S - lse) is 0
  float lse_scale;  // 1; kLog2E: P is a power of 2; -1 / scale: accumulators of Q K^T begin with it
  float delta_scale = 1.0f;    // 1; -1: accumulators of dO V^T begin with it
  float* dq_accum;             // [num_heads, padded_rows, dq_accum_cols]: sums of dS K; may be null
  std::int64_t dq_accum_cols;  // a multiple of 4; of 16 in blocks
  DqAccumLayout dq_accum_layout = DqAccumLayout::row_major;
  // dQ in fixed point: its sums are integers, whose order does not matter. Null: floats.
  std::uint16_t* dq_scale = nullptr;  // [num_heads, padded_rows] by dq_scale_index: so many make
                                      // 1 of a row's dq, the upper half of a float, a power of 2;
                                      // NaN where a NaN or an infinity may reach it
  KvAbsMax* kv_abs_max = nullptr;     // [batch, num_kv_heads, num_key_chunks]
  std::uint32_t* error_word;
};

// Fills d and lse, all rows up to first_padded_row(p, batch, total_q), and dq with zeros.
Status launch_bwd_preprocess(const BwdPreprocessParams& rows, Stream stream);
// Before it, for dQ in fixed point: kv_abs_max, of f16 and bf16 rows of whole pieces of 16 bytes.
// Of batch entries and of num_key_chunks() there are at most 65535, as a grid has.
Status launch_kv_abs_max(const BwdPreprocessParams& rows, Stream stream);
// Gradients of q: the sums of dq times the scale, rounded once.
Status launch_convert_dq(const BwdPreprocessParams& rows, Stream stream);
// Gradients of the sinks, from d and lse. Always the same order of sums.
Status launch_dsinks(const BwdPreprocessParams& rows, Stream stream);

}  // namespace headrace::cuda
