#include "kv_cache/contiguous_cache.h"

#include <gtest/gtest.h>

#include <set>

#include "core/device.h"

namespace headrace {
namespace {

constexpr KvShape kShape = {
    .num_layers = 3, .num_kv_heads = 2, .head_dim = 4, .head_dim_v = 5, .dtype = DType::f32};

// Every element of every row has a place of its own inside the cache's memory, with the strides
// that attention reads by.
TEST(ContiguousCache, RowsDoNotOverlap) {
  const auto device = make_host_device(cpu_info().value());
  const std::int64_t capacity = 7;
  auto cache = ContiguousCache::make(*device, kShape, capacity);
  ASSERT_TRUE(cache.ok());
  const KvSequence sequence = cache.value().sequence();
  const KvView view{kShape, {&sequence, 1}};
  std::set<float*> places;
  const auto insert_row = [&](const Operand& x, std::int64_t token, std::int64_t head,
                              std::int64_t dim) {
    float* row = static_cast<float*>(x.data) + row_offset(x, 0, token, head);
    for (std::int64_t d = 0; d < dim; ++d) {
      EXPECT_TRUE(places.insert(row + d).second);
      row[d] = 1;  // inside the memory: the sanitizers look
    }
  };
  for (std::int64_t layer = 0; layer < kShape.num_layers; ++layer) {
    const Operand k = layer_of(view, sequence, sequence.k, layer);
    const Operand v = layer_of(view, sequence, sequence.v, layer);
    for (std::int64_t token = 0; token < capacity; ++token) {
      const Operand k_from = layer_of(view, sequence, sequence.k, layer, token);
      const Operand v_from = layer_of(view, sequence, sequence.v, layer, token);
      for (std::int64_t head = 0; head < kShape.num_kv_heads; ++head) {
        EXPECT_EQ(static_cast<float*>(k_from.data) + row_offset(k_from, 0, 0, head),
                  static_cast<float*>(k.data) + row_offset(k, 0, token, head));
        EXPECT_EQ(static_cast<float*>(v_from.data) + row_offset(v_from, 0, 0, head),
                  static_cast<float*>(v.data) + row_offset(v, 0, token, head));
        insert_row(k, token, head, kShape.head_dim);
        insert_row(v, token, head, kShape.head_dim_v);
      }
    }
  }
}

TEST(ContiguousCache, SaysWhenThereIsNoMemory) {
  const auto device = make_host_device(cpu_info().value());
  for (const std::int64_t capacity : {std::int64_t{1} << 50, std::int64_t{1} << 58}) {
    const auto cache = ContiguousCache::make(*device, kShape, capacity);
    ASSERT_FALSE(cache.ok());
    EXPECT_EQ(cache.failure().code, ErrorCode::out_of_memory);
  }
}

}  // namespace
}  // namespace headrace
