// The keys and values that a step reads and writes: the pages of one pool, in device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/args.h"
#include "core/codes.h"
#include "core/dtype.h"
#include "core/sparq_args.h"

namespace headrace {

struct KvShape {
  std::int64_t num_layers, num_kv_heads, head_dim, head_dim_v;
  DType dtype;            // of queries and, if keys or values are codes, of recent ones
  DType k_dtype = dtype;  // of stored keys: dtype or codes
  DType v_dtype = dtype;
  bool has_key_bias = false;  // of the model
  // For SparQ attention: keys by component too, and sums of values.
  bool has_components = false, has_value_sums = false;

  constexpr bool has_codes() const { return k_dtype != dtype || v_dtype != dtype; }
  constexpr std::int64_t recent_group() const { return recent_group_of(k_dtype); }
  // Whether models divide keys by the factors of their channels: where a bias makes a few channels
  // large, they would set the step of the whole head (docs/design/0008-channel-factors.md). Codes
  // that are floats have a step for each magnitude, those with zero points for each channel.
  constexpr bool has_channel_factors() const {
    return has_key_bias && (k_dtype == DType::i8 || k_dtype == DType::i4x2);
  }
  // Whether models multiply queries and keys with the Hadamard matrix: keys of 4 bits need it, but
  // where a bias makes a few channels large it spreads their error over all
  // (docs/design/0006-int4-keys.md).
  constexpr bool has_hadamard() const { return k_dtype == DType::i4x2 && !has_key_bias; }
};

// K and V of the first layer; those of the next one are layer_bytes further.
struct KvOperands {
  Operand k, v;  // stride_batch is that of a page
  std::int64_t page_size = 0, num_pages = 0;
  std::int64_t layer_bytes = 0;
};

// Which pages belong to which sequence is part of a Batch.
struct KvView {
  KvShape shape;
  std::int64_t page_size, num_pages;
  Operand k, v;                   // of the first layer; stride_batch is that of a page
  std::int64_t layer_bytes;       // from one layer to the next, of k, v and the scales
  ScaleOperand k_scale, v_scale;  // of codes
  KvOperands recent = {};         // of pages of recent_group() keys; with codes
  KeyComponents components = {};  // of the first layer; null without
  SparqRows value_sums = {};      // float [num_pages, num_kv_heads, head_dim_v], as components
};

// K, V or their scales of a layer.
inline Operand layer_of(const Operand& first, std::int64_t layer_bytes, std::int64_t layer) {
  Operand operand = first;
  operand.data = static_cast<std::byte*>(first.data) + layer * layer_bytes;
  return operand;
}
inline ScaleOperand layer_of(const ScaleOperand& first, std::int64_t layer_bytes,
                             std::int64_t layer) {
  ScaleOperand scale = first;
  if (first.data != nullptr)
    scale.data = static_cast<const std::byte*>(first.data) + layer * layer_bytes;
  return scale;
}
inline Operand layer_of(const KvView& kv, const Operand& k_or_v, std::int64_t layer) {
  return layer_of(k_or_v, kv.layer_bytes, layer);
}

}  // namespace headrace
