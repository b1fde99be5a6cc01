// The keys and values that a step reads and writes, in device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/args.h"
#include "core/dtype.h"

namespace headrace {

struct KvShape {
  std::int64_t num_layers, num_kv_heads, head_dim, head_dim_v;
  DType dtype;
};

// Keys and values of one sequence. Element offset of (layer, token, head): layer * stride_layer +
// token * stride_seq + head * stride_head.
struct KvSequence {
  Operand k, v;
  std::int64_t stride_layer;  // of k and of v
};

// The sequences of a batch, in batch order.
struct KvView {
  KvShape shape;
  std::span<const KvSequence> sequences;
};

// K or V of a layer, starting at token `first`.
inline Operand layer_of(const KvView& kv, const KvSequence& sequence, const Operand& k_or_v,
                        std::int64_t layer, std::int64_t first = 0) {
  const std::int64_t elements = layer * sequence.stride_layer + first * k_or_v.stride_seq;
  Operand operand = k_or_v;
  operand.data = static_cast<std::byte*>(k_or_v.data) +
                 elements * static_cast<std::int64_t>(dtype_bytes(kv.shape.dtype));
  return operand;
}

}  // namespace headrace
