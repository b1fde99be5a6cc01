// Kernels before and after the main kernel of a backward: delta (D = rowsum(dO * O) - dlse) and the
// lse in padded rows, conversion of dQ from its float accumulator, dsinks.
#pragma once

#include "backends/cuda/common/padded_rows.h"
#include "core/kernel.h"

namespace headrace::cuda {

// A call on the host, of which each kernel gets what it reads.
struct BwdCall {
  const Problem& problem;
  const AttentionArgs& args;
  BwdRows rows;
  // 1; kLog2E: P = 2^(S log2 e - lse); -1 / scale: initial value of the accumulators of Q K^T.
  float lse_scale;
  float delta_scale = 1.0f;        // 1; -1: initial value of the accumulators of dO V^T
  KvAbsMax* kv_abs_max = nullptr;  // [batch, num_kv_heads, num_key_chunks]; with dq_scale
  std::uint32_t* error_word;
};

// Fills delta and lse of all rows up to first_padded_row(sizes, batch, total_q), and clears
// dq_accum.
Status launch_bwd_preprocess(const BwdCall& call, Stream stream);
// Fills kv_abs_max; runs before launch_bwd_preprocess for fixed-point dQ. Needs f16 or bf16 rows of
// whole 16-byte chunks, and at most 65535 batch entries and num_key_chunks(), the limit of grid y,
// z.
Status launch_kv_abs_max(const BwdCall& call, Stream stream);
// dq = dq_accum * softmax_scale, rounded once. dq_accum is in fragments: blocks of 8 rows x 16
// columns, row by row, each in the lane order of two mma.sync accumulators: lane 4 g + t holds row
// g, columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9. dq_accum_cols is a multiple of 16.
Status launch_convert_dq(const BwdCall& call, Stream stream);
// dsinks, from delta and lse. The order of the sums is fixed.
Status launch_dsinks(const BwdCall& call, Stream stream);

}  // namespace headrace::cuda
