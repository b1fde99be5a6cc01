// The sizes and pointers of one validated call of SparQ attention and of its append. Strides are in
// elements; the last axis of q, k, k_components, v, out and v_sum is contiguous. Keys that are not
// paged are one page per sequence, of seqlen_k slots.
#pragma once

#include <algorithm>

#include "core/key_row.h"

namespace headrace {

inline constexpr int kMaxSparqDim = 576;  // of head_dim and head_dim_v

// Of every layer of a model; num_keys 0: dense attention.
struct SparqSizes {
  std::int64_t num_components = 0, num_keys = 0;
};

// [batch, num_heads, dim]
struct SparqRows {
  void* data = nullptr;
  std::int64_t stride_batch = 0, stride_head = 0;
};

// [num_pages, num_kv_heads, head_dim, page_size]
struct KeyComponents {
  void* data = nullptr;
  std::int64_t stride_page = 0, stride_head = 0, stride_component = 0;
};

struct SparqArgs {
  std::int64_t batch = 0, num_heads = 0, num_kv_heads = 1, head_dim = 0, head_dim_v = 0;
  std::int64_t seqlen_k = 0;  // upper bound of the lengths
  std::int64_t page_size = 1, num_pages = 0;
  // num_keys is at most seqlen_k, local_window at most num_keys.
  std::int64_t num_components = 0, num_keys = 0, local_window = 0;
  float softmax_scale = 0;
  DType dtype = DType::f32;
  SparqRows q, out;
  Operand k, v;  // stride_batch is that of a page
  KeyComponents components;
  PagedKeys paged;                  // block_table null: page i holds the keys of sequence i
  SparqRows v_sum;                  // float [batch, num_kv_heads, head_dim_v]; data may be null
  std::int32_t* indices = nullptr;  // [batch, num_kv_heads, num_indices], may be null
  std::int64_t indices_stride_batch = 0, indices_stride_head = 0, indices_stride_key = 0;
  std::int64_t num_indices = 0;
  float* alpha = nullptr;  // [batch, num_heads], may be null
  std::int64_t alpha_stride_batch = 0, alpha_stride_head = 0;
  // With codes k and v are those of dense attention of the same query.
  bool has_codes = false;
  Problem problem{};
  AttentionArgs dense;
};

constexpr std::int64_t group_size(const SparqArgs& args) {
  return args.num_heads / args.num_kv_heads;
}
constexpr std::int64_t page_of(const SparqArgs& args, std::int64_t batch_idx,
                               std::int64_t page_idx) {
  return args.paged.block_table == nullptr
             ? batch_idx
             : args.paged.block_table[batch_idx * args.paged.stride_batch + page_idx];
}

// K or V of a key as the query of a call with codes sees it.
constexpr KeyRow code_row(const SparqArgs& args, std::int64_t batch_idx, std::int64_t seqlen_k,
                          std::int64_t kv_head, std::int64_t key, bool is_of_k) {
  const Sequence sequence{.seqlen_q = 1, .seqlen_k = seqlen_k};
  return key_row(args.problem, args.dense, sequence, batch_idx, kv_head, seqlen_k - 1, key,
                 is_of_k);
}

struct SparqAppendArgs {
  std::int64_t num_tokens = 0;  // whose keys are copied; values are those of cu_seqlens
  std::int64_t batch = 0, num_kv_heads = 0, head_dim = 0, head_dim_v = 0;
  std::int64_t page_size = 1, num_pages = 0;
  DType dtype = DType::f32;
  Operand k, v;  // stride_batch is that of a page; v.data may be null
  DType v_dtype = DType::f32;
  ScaleOperand v_scale;  // of codes
  KeyComponents components;
  const std::int64_t* slot_mapping = nullptr;  // [num_tokens]; negative: left out
  std::int64_t slot_stride = 0;
  // Where k has the tokens' keys, in pages of k_page_size: [num_tokens], negative: left out. Null:
  // at slot_mapping.
  const std::int64_t* k_slots = nullptr;
  std::int64_t k_slot_stride = 0, k_page_size = 1, k_num_pages = 0;
  const std::int32_t* cu_seqlens = nullptr;  // [batch + 1]; null: one token per row of v_sum
  SparqRows v_sum;                           // float [batch, num_kv_heads, head_dim_v]
};

// The value at a slot.
constexpr KeyRow value_row(const SparqAppendArgs& args, std::int64_t slot, std::int64_t kv_head) {
  const std::int64_t page = slot / args.page_size, row = slot % args.page_size;
  KeyRow value{.data = args.v.data,
               .dtype = args.v_dtype,
               .offset = elements_of(args.v_dtype, row_offset(args.v, page, row, kv_head))};
  if (args.v_scale.data == nullptr) return value;
  const Operand strides{nullptr, args.v_scale.stride_batch, args.v_scale.stride_seq,
                        args.v_scale.stride_head};
  const std::int64_t at = row_offset(strides, page, row, kv_head);
  if (has_zero_points(args.v_dtype))
    value.scales = {static_cast<const std::uint32_t*>(args.v_scale.data) + at, kZeroPointGroup};
  else
    value.scale = static_cast<const float*>(args.v_scale.data)[at];
  return value;
}

// The tokens [first, last) of a row of v_sum.
struct TokenRange {
  std::int64_t first, last;
};
constexpr TokenRange tokens_of_row(const SparqAppendArgs& args, std::int64_t row) {
  if (args.cu_seqlens == nullptr) return {row, row + 1};
  return {args.cu_seqlens[row], args.cu_seqlens[row + 1]};
}

}  // namespace headrace
