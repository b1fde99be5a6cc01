// The pointers of one call, grouped by purpose. Strides are in elements; an axis that broadcasts
// has stride 0.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace headrace {

// q, k, v, out and their gradients: [batch, seqlen, heads, dim]; ragged: [total, heads, dim] with
// stride_batch 0. dim has stride 1.
struct Operand {
  void* data = nullptr;
  std::int64_t stride_batch = 0, stride_seq = 0, stride_head = 0;
};

// cu_seqlens of a ragged batch, contiguous; both null for a dense batch.
struct Ragged {
  const std::int32_t* cu_seqlens_q = nullptr;  // [batch + 1]
  const std::int32_t* cu_seqlens_k = nullptr;  // [batch + 1]
};

// bias, mask, dbias: [batch, num_heads, seqlen_q, seqlen_k]; ragged: [num_heads, total_q,
// max_seqlen_k], stride_batch 0 and the query index counts from the start of the packed rows
// (unless the query axis broadcasts).
struct ScoreOperand {
  const void* data = nullptr;  // const, but probs and dbias are outputs
  DType dtype = DType::f32;
  std::int64_t stride_batch = 0, stride_head = 0, stride_q = 0, stride_k = 0;
};

// lse, dlse: [batch, num_heads, seqlen_q]; ragged [num_heads, total_q].
struct LseOperand {
  void* data = nullptr;  // float, or double with f64 inputs; may be null
  std::int64_t stride_batch = 0, stride_head = 0, stride_q = 0;
};

// Backward only: dout and dlse are inputs, the others outputs. dbias has stride 0 along axes that
// are reduced.
struct GradientArgs {
  Operand dout, dq, dk, dv;
  LseOperand dlse;          // data may be null
  ScoreOperand dbias;       // data may be null
  float* dsinks = nullptr;  // [num_heads], may be null
  std::int64_t dsinks_stride = 0;
};

struct AttentionArgs {
  Operand q, k, v, out;
  LseOperand lse;
  Ragged ragged;
  ScoreOperand bias, mask;              // data may be null
  const float* alibi_slopes = nullptr;  // may be null
  std::int64_t alibi_stride_batch = 0, alibi_stride_head = 0;
  const std::uint32_t* tree_mask = nullptr;  // may be null; words of one row have stride 1
  std::int64_t tree_stride_batch = 0, tree_stride_q = 0;
  const float* sinks = nullptr;  // [num_heads], may be null
  std::int64_t sinks_stride = 0;
  ScoreOperand probs;  // written; data may be null
  std::uint64_t dropout_seed = 0, dropout_offset = 0;
  GradientArgs gradients;  // backward only
};

// Position and length of one sequence. Dense: a batch entry; ragged: its rows in q and k.
struct Sequence {
  std::int64_t row_q = 0, row_k = 0;  // first row; dense: 0, the batch axis has a stride
  std::int64_t seqlen_q = 0, seqlen_k = 0;
};

inline Sequence sequence_of(const Problem& p, const AttentionArgs& args, std::int64_t batch_idx) {
  if (!p.is_ragged) return {.seqlen_q = p.seqlen_q, .seqlen_k = p.seqlen_k};
  const std::int32_t* cu_q = args.ragged.cu_seqlens_q + batch_idx;
  const std::int32_t* cu_k = args.ragged.cu_seqlens_k + batch_idx;
  return {.row_q = cu_q[0],
          .row_k = cu_k[0],
          .seqlen_q = cu_q[1] - cu_q[0],
          .seqlen_k = cu_k[1] - cu_k[0]};
}

// Element offset of a row of a sequence in q, k, v or out.
constexpr std::int64_t row_offset(const Operand& x, std::int64_t batch_idx, std::int64_t row,
                                  std::int64_t head) {
  return batch_idx * x.stride_batch + row * x.stride_seq + head * x.stride_head;
}

}  // namespace headrace
