// The keys and values that a step reads and writes: the pages of one pool, in device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/args.h"
#include "core/dtype.h"

namespace headrace {

struct KvShape {
  std::int64_t num_layers, num_kv_heads, head_dim, head_dim_v;
  DType dtype;
};

// Which pages belong to which sequence is part of a Batch.
struct KvView {
  KvShape shape;
  std::int64_t page_size, num_pages;
  Operand k, v;               // of the first layer; stride_batch is that of a page
  std::int64_t stride_layer;  // of k and of v, in elements
};

// K or V of a layer.
inline Operand layer_of(const KvView& kv, const Operand& k_or_v, std::int64_t layer) {
  Operand operand = k_or_v;
  operand.data = static_cast<std::byte*>(k_or_v.data) +
                 layer * kv.stride_layer * static_cast<std::int64_t>(dtype_bytes(kv.shape.dtype));
  return operand;
}

}  // namespace headrace
