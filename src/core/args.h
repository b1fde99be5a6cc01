// The pointers of one call, grouped by concern. Strides are in elements; an axis that broadcasts
// has stride 0.
#pragma once

#include <cstdint>

#include "headrace/tensor.hpp"

namespace headrace {

// q, k, v, out: [batch, seqlen, heads, dim]; ragged: [total, heads, dim] and stride_batch is 0. dim
// has stride 1.
struct Operand {
  void* data = nullptr;
  std::int64_t stride_batch = 0, stride_seq = 0, stride_head = 0;
};

// Row lengths of a ragged batch; both null for a dense one. The views they come from are
// contiguous.
struct Ragged {
  const std::int32_t* cu_seqlens_q = nullptr;  // [batch + 1]
  const std::int32_t* cu_seqlens_k = nullptr;  // [batch + 1]
};

// bias, mask: [batch, num_heads, seqlen_q, seqlen_k]; ragged: [num_heads, total_q, max_seqlen_k],
// stride_batch 0 and the query index counts from the start of the packed rows (unless the query
// axis broadcasts).
struct ScoreOperand {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t stride_batch = 0, stride_head = 0, stride_q = 0, stride_k = 0;
};

// lse: [batch, num_heads, seqlen_q]; ragged [num_heads, total_q].
struct LseOperand {
  void* data = nullptr;  // float, or double with f64 inputs; may be null
  std::int64_t stride_batch = 0, stride_head = 0, stride_q = 0;
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
};

// Where one sequence lies and how long it is. Dense: the batch entry; ragged: its rows.
struct Sequence {
  std::int64_t batch_idx;     // index for operands with a batch axis (0 stride when ragged)
  std::int64_t row_q, row_k;  // first row in q / k (dense: 0)
  std::int64_t seqlen_q, seqlen_k;
};

}  // namespace headrace
