// What kernels read of a problem and a call, as small values: the Params of a kernel have those
// that it needs. Plans keep the values without pointers.
#pragma once

#include "backends/cuda/common/score_params.h"
#include "core/args.h"

namespace headrace::cuda {

// Sizes of a problem. Ragged: the lengths are those of the longest sequence.
struct Sizes {
  std::int64_t batch, num_heads, num_kv_heads;
  std::int64_t seqlen_q, seqlen_k;
  std::int64_t total_q, total_k;  // ragged: rows of q, of k and v
  std::int64_t head_dim, head_dim_v;
  std::int32_t is_ragged;
};
constexpr Sizes sizes_of(const Problem& p) {
  return {.batch = p.batch,
          .num_heads = p.num_heads,
          .num_kv_heads = p.num_kv_heads,
          .seqlen_q = p.seqlen_q,
          .seqlen_k = p.seqlen_k,
          .total_q = p.total_q,
          .total_k = p.total_k,
          .head_dim = p.head_dim,
          .head_dim_v = p.head_dim_v,
          .is_ragged = p.is_ragged};
}

// The lengths of a ragged batch on the device.
struct Lengths {
  Ragged ragged;
  std::uint32_t* error_word;
  std::int32_t has_tree_mask;  // a sequence then has at least as many keys as queries
};
inline Lengths lengths_of(const Problem& p, const AttentionArgs& args, std::uint32_t* error_word) {
  return {.ragged = args.ragged, .error_word = error_word, .has_tree_mask = p.has_tree_mask};
}

// The keys of each sequence that are used, where a call says so.
struct UsedKeys {
  const std::int32_t* seqused_k;  // [batch], may be null
  std::int64_t stride;
  const std::int32_t* page_indptr;  // [batch + 1], as in PagedKeys; may be null
  std::int32_t num_entries, page_size;
  std::int32_t has_ragged_keys;
};
inline UsedKeys used_keys_of(const Problem& p, const AttentionArgs& args) {
  return {.seqused_k = args.paged.seqused_k,
          .stride = args.paged.seqused_stride,
          .page_indptr = args.paged.page_indptr,
          .num_entries = args.paged.num_entries,
          .page_size = static_cast<std::int32_t>(p.page_size),
          .has_ragged_keys = has_ragged_keys(p)};
}

struct AlibiArgs {
  const float* slopes;  // may be null
  std::int64_t stride_batch, stride_head;
};
inline AlibiArgs alibi_args_of(const AttentionArgs& args) {
  return {.slopes = args.alibi_slopes,
          .stride_batch = args.alibi_stride_batch,
          .stride_head = args.alibi_stride_head};
}

// Everything that general scores (common/scores.cuh) depend on.
struct ScoreArgs {
  ScoreParams params;
  ScoreOperand bias, mask;  // data may be null
  AlibiArgs alibi;
  const std::uint32_t* tree_mask;  // may be null; words of one row have stride 1
  std::int64_t tree_stride_batch, tree_stride_q;
  std::uint64_t dropout_seed, dropout_offset;
};
inline ScoreArgs score_args_of(const ScoreParams& params, const AttentionArgs& args) {
  return {.params = params,
          .bias = args.bias,
          .mask = args.mask,
          .alibi = alibi_args_of(args),
          .tree_mask = args.tree_mask,
          .tree_stride_batch = args.tree_stride_batch,
          .tree_stride_q = args.tree_stride_q,
          .dropout_seed = args.dropout_seed,
          .dropout_offset = args.dropout_offset};
}

struct SinkArgs {
  const float* sinks;  // [num_heads], may be null
  std::int64_t stride;
  std::int32_t has_sinks;
};
inline SinkArgs sink_args_of(const Problem& p, const AttentionArgs& args) {
  return {.sinks = args.sinks, .stride = args.sinks_stride, .has_sinks = p.has_sinks};
}

// What the epilogue of a row (common/row_epilogue.cuh) reads.
struct RowArgs {
  LseOperand lse;  // data may be null
  SinkArgs sinks;
};
inline RowArgs row_args_of(const Problem& p, const AttentionArgs& args) {
  return {.lse = args.lse, .sinks = sink_args_of(p, args)};
}

}  // namespace headrace::cuda
