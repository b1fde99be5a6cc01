#include "kv_cache/contiguous_cache.h"

#include "base/math.h"

namespace headrace {
namespace {

std::int64_t layer_elements(const KvShape& shape, std::int64_t capacity) {
  return shape.num_kv_heads * capacity * (shape.head_dim + shape.head_dim_v);
}

}  // namespace

Result<ContiguousCache> ContiguousCache::make(Device& device, const KvShape& shape,
                                              std::int64_t capacity) {
  const auto bytes = static_cast<std::size_t>(
      saturating_product({shape.num_layers, layer_elements(shape, capacity),
                          static_cast<std::int64_t>(dtype_bytes(shape.dtype))}));
  Buffer memory = device.allocate(bytes);
  if (memory.data() == nullptr)
    return Failure{ErrorCode::out_of_memory,
                   format_text("no memory for {} bytes of keys and values of {} tokens; use a "
                               "shorter context or a 16-bit cache",
                               bytes, capacity)};
  return ContiguousCache(shape, capacity, std::move(memory));
}

KvSequence ContiguousCache::sequence() const {
  const std::int64_t values = shape_.num_kv_heads * capacity_ * shape_.head_dim;
  return {
      .k = {.data = memory_.data(),
            .stride_batch = 0,
            .stride_seq = shape_.head_dim,
            .stride_head = capacity_ * shape_.head_dim},
      .v = {.data = memory_.data() + values * static_cast<std::int64_t>(dtype_bytes(shape_.dtype)),
            .stride_batch = 0,
            .stride_seq = shape_.head_dim_v,
            .stride_head = capacity_ * shape_.head_dim_v},
      .stride_layer = layer_elements(shape_, capacity_)};
}

}  // namespace headrace
