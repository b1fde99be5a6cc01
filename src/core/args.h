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

// Where the keys of a sequence lie if k and v are pages (stride_batch is then that of a page), and
// how many they are. All null without.
struct PagedKeys {
  const std::int32_t* block_table = nullptr;  // [batch][max_pages], rows contiguous
  std::int64_t stride_batch = 0;              // of block_table
  // Null, or block_table is [num_entries] with stride 0, in which a sequence has the entries from
  // page_indptr[batch_idx] to before page_indptr[batch_idx + 1].
  const std::int32_t* page_indptr = nullptr;  // [batch + 1]
  std::int32_t num_entries = 0;
  const std::int32_t* seqused_k = nullptr;  // [batch]; also given without pages
  std::int64_t seqused_stride = 0;
};

// Scales of the codes of k or v, f32: one for each key and head (strides as those of k), or one for
// each sequence and head. With zero points words (core/quantise.h), contiguous for each head of a
// value or of kZeroPointGroup keys, which stride_seq counts. `data` is null without.
struct ScaleOperand {
  const void* data = nullptr;
  std::int64_t stride_sequence = 0;                                // of the batch index
  std::int64_t stride_batch = 0, stride_seq = 0, stride_head = 0;  // of a page or batch entry
};

// Keys in pages of recent_group keys; the pages of a sequence follow each other from the group of
// its first query. All null without.
struct RecentKeys {
  Operand k, v;  // stride_batch is that of a page
  const std::int32_t* table = nullptr;
  std::int64_t stride_table = 0;
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
  ScaleOperand k_scale, v_scale;
  RecentKeys recent;
  LseOperand lse;
  Ragged ragged;
  PagedKeys paged;
  // On a GPU: the kernel before the call on the stream appends keys that are among the last total_q
  // of every sequence, and lets the call begin when all work before itself is complete, so that
  // older keys, lengths and tables may be read beside it. Ragged calls alone.
  bool follows_append = false;
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
  // First row; dense: 0, the batch axis has a stride. Of k in pages: its first entry in its row of
  // block_table, 0 without page_indptr.
  std::int64_t row_q = 0, row_k = 0;
  std::int64_t seqlen_q = 0, seqlen_k = 0;
};

inline Sequence sequence_of(const Problem& p, const AttentionArgs& args, std::int64_t batch_idx) {
  Sequence sequence{.seqlen_q = p.seqlen_q, .seqlen_k = p.seqlen_k};
  if (p.is_ragged) {
    const std::int32_t* cu_q = args.ragged.cu_seqlens_q + batch_idx;
    sequence.row_q = cu_q[0];
    sequence.seqlen_q = cu_q[1] - cu_q[0];
  }
  if (has_ragged_keys(p)) {
    const std::int32_t* cu_k = args.ragged.cu_seqlens_k + batch_idx;
    sequence.row_k = cu_k[0];
    sequence.seqlen_k = cu_k[1] - cu_k[0];
  }
  if (p.has_seqused_k)
    sequence.seqlen_k = args.paged.seqused_k[batch_idx * args.paged.seqused_stride];
  if (args.paged.page_indptr != nullptr) sequence.row_k = args.paged.page_indptr[batch_idx];
  return sequence;
}

// The group of recent keys that the first entry of a sequence's recent_table has.
constexpr std::int64_t first_recent_group(const Problem& p, const Sequence& sequence) {
  return first_recent(p, sequence.seqlen_k - sequence.seqlen_q) / p.recent_group;
}

// Element offset of a row of a sequence in q, k, v or out.
constexpr std::int64_t row_offset(const Operand& x, std::int64_t batch_idx, std::int64_t row,
                                  std::int64_t head) {
  return batch_idx * x.stride_batch + row * x.stride_seq + head * x.stride_head;
}

// The pages of a sequence.
constexpr const std::int32_t* pages_of(const PagedKeys& paged, const Sequence& sequence,
                                       std::int64_t batch_idx) {
  return paged.block_table + batch_idx * paged.stride_batch + sequence.row_k;
}

// Element offset of a key of a sequence in k or v.
constexpr std::int64_t key_offset(const Problem& p, const PagedKeys& paged, const Operand& x,
                                  const Sequence& sequence, std::int64_t batch_idx,
                                  std::int64_t key, std::int64_t kv_head) {
  if (!has_pages(p)) return row_offset(x, batch_idx, sequence.row_k + key, kv_head);
  const std::int64_t page = pages_of(paged, sequence, batch_idx)[key / p.page_size];
  return row_offset(x, page, key % p.page_size, kv_head);
}

// Element offset of a recent key in recent.k or recent.v.
constexpr std::int64_t recent_offset(const Problem& p, const RecentKeys& recent, const Operand& x,
                                     const Sequence& sequence, std::int64_t batch_idx,
                                     std::int64_t key, std::int64_t kv_head) {
  const std::int64_t entry = key / p.recent_group - first_recent_group(p, sequence);
  const std::int64_t page = recent.table[batch_idx * recent.stride_table + entry];
  return row_offset(x, page, key % p.recent_group, kv_head);
}

// The scale of a key's codes without zero points; 1 without scales.
constexpr float scale_of(const Problem& p, const PagedKeys& paged, const ScaleOperand& scale,
                         const Sequence& sequence, std::int64_t batch_idx, std::int64_t key,
                         std::int64_t kv_head) {
  if (scale.data == nullptr) return 1.0f;
  const Operand x{nullptr, scale.stride_batch, scale.stride_seq, scale.stride_head};
  return static_cast<const float*>(
      scale.data)[batch_idx * scale.stride_sequence +
                  key_offset(p, paged, x, sequence, batch_idx, key, kv_head)];
}

// The scales and zero points of a key's codes, by channel: word d / `channels`.
struct ScaleWords {
  const std::uint32_t* words = nullptr;
  std::int64_t channels = 1;
};
constexpr ScaleWords scale_words(const Problem& p, const AttentionArgs& args,
                                 const Sequence& sequence, std::int64_t batch_idx, std::int64_t key,
                                 std::int64_t kv_head, bool is_of_k) {
  const ScaleOperand& scale = is_of_k ? args.k_scale : args.v_scale;
  const std::int64_t page = pages_of(args.paged, sequence, batch_idx)[key / p.page_size];
  const std::int64_t row = key % p.page_size / (is_of_k ? kZeroPointGroup : 1);
  return {static_cast<const std::uint32_t*>(scale.data) + page * scale.stride_batch +
              row * scale.stride_seq + kv_head * scale.stride_head,
          is_of_k ? 1 : kZeroPointGroup};
}

}  // namespace headrace
