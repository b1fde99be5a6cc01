// The pointers of one validated append to a paged KV cache: q and k are normalised and rotated, q
// goes to q_out, k and v go to their slots in the pages. Strides are in elements; the last axis of
// every operand is contiguous.
#pragma once

#include <cstdint>

#include "core/codes.h"
#include "core/rope.h"
#include "headrace/tensor.hpp"

namespace headrace {

inline constexpr int kMaxAppendDim = 576;  // of head_dim and head_dim_v

// [num_tokens, num_heads, head_dim]; f32, f16 or bf16.
struct HeadRows {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t stride_token = 0, stride_head = 0;
};

// [num_pages, page_size, num_kv_heads, head_dim]; f32, f16, bf16 or codes.
struct PageRows {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t stride_page = 0, stride_slot = 0, stride_head = 0;
};

// Of pages of codes: f32 [num_pages, page_size, num_kv_heads], or words of scales and zero points
// (core/quantise.h): of k [num_pages, page_size / kZeroPointGroup, num_kv_heads, head_dim], of v
// [num_pages, page_size, num_kv_heads, a word for each kZeroPointGroup channels].
struct ScaleRows {
  void* data = nullptr;
  std::int64_t stride_page = 0, stride_slot = 0, stride_head = 0;
};

// The second place of keys and values, unquantised.
struct RecentRows {
  PageRows k, v;                        // pages of `group` slots; null without
  const std::int64_t* slots = nullptr;  // [num_tokens]; negative: not stored
  std::int64_t slot_stride = 0;
  std::int64_t group = 0, num_pages = 0;
};

// [head_dim]; f32, f16 or bf16. Null: no norm.
struct NormWeight {
  const void* data = nullptr;
  DType dtype = DType::f32;
};

// [num_kv_heads, head_dim]: an element of q is multiplied by the factor of its channel, one of k
// divided. Null: none.
struct ChannelFactors {
  const float* data = nullptr;
  std::int64_t stride_head = 0;
  std::int64_t group = 1;  // query heads of a head of k
};

// Cosines and sines [max_positions, rot_dim / 2]; f32, f16 or bf16.
struct RopeTables {
  const void *cos = nullptr, *sin = nullptr;  // null: the angles follow from `frequencies`
  DType cos_dtype = DType::f32, sin_dtype = DType::f32;
  std::int64_t cos_stride = 0, sin_stride = 0;  // along positions
  std::int64_t max_positions = 0;
};

struct KvAppendArgs {
  std::int64_t num_tokens = 0;
  std::int64_t num_heads = 0;     // of q; 0: no q
  std::int64_t num_kv_heads = 0;  // of k and v; 0: neither
  std::int64_t head_dim = 0, head_dim_v = 0;
  std::int64_t page_size = 0, num_pages = 0;
  HeadRows q, q_out, k, v;
  PageRows k_pages, v_pages;
  ScaleRows k_scale, v_scale;  // of codes
  RecentRows recent;
  const std::int64_t* slot_mapping = nullptr;  // [num_tokens]; negative: not stored
  std::int64_t slot_stride = 0;
  // [num_tokens]; null without rotation, and on a GPU where token i has row i of the tables.
  const std::int32_t* positions = nullptr;
  std::int64_t position_stride = 0;
  NormWeight q_norm, k_norm;
  float norm_eps = 0;
  RopeLayout layout = RopeLayout::interleaved;
  std::int64_t rot_dim = 0;  // 0: no rotation
  RopeTables tables;
  ChannelFactors channel_factors;   // of q and k after the rotation
  std::int64_t hadamard_block = 1;  // core/hadamard.h, of q and k after the factors; 1: none
  float hadamard_scale = 1;
  double attention_factor = 1;                 // of cosines and sines from `frequencies`
  double frequencies[kMaxAppendDim / 2] = {};  // [rot_dim / 2]
};

// Whether a position has angles.
constexpr bool has_angles(const KvAppendArgs& args, std::int64_t position) {
  return args.tables.cos == nullptr || (position >= 0 && position < args.tables.max_positions);
}

// Whether the keys of a slot and of those before it are a whole group of keys with zero points.
constexpr bool ends_zero_point_group(std::int64_t slot) {
  return slot >= 0 && slot % kZeroPointGroup == kZeroPointGroup - 1;
}

// Offset of a slot and head in pages or scales of `page_size` slots; `slot` is one of them.
template <class Rows>
constexpr std::int64_t slot_offset(std::int64_t page_size, const Rows& pages, std::int64_t slot,
                                   std::int64_t head) {
  return slot / page_size * pages.stride_page + slot % page_size * pages.stride_slot +
         head * pages.stride_head;
}

}  // namespace headrace
