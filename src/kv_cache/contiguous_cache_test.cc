#include "kv_cache/contiguous_cache.h"

#include <gtest/gtest.h>

#include <set>

namespace headrace {
namespace {

constexpr KvShape kShape = {
    .num_layers = 3, .num_kv_heads = 2, .head_dim = 4, .head_dim_v = 5, .dtype = DType::f32};

std::unique_ptr<KvCache> make(std::int64_t capacity) {
  auto cache = make_contiguous_cache(kShape, capacity);
  EXPECT_TRUE(cache.ok());
  return std::move(cache.value());
}

// Every element of every row has a place of its own, and attention finds it where it was written.
TEST(ContiguousCache, RowsAreWhereAttentionReadsThem) {
  const std::int64_t capacity = 7;
  const auto cache = make(capacity);
  ASSERT_FALSE(cache->reserve(capacity));
  std::set<const float*> places;
  for (std::int64_t layer = 0; layer < kShape.num_layers; ++layer) {
    const Operand k = cache->keys(layer), v = cache->values(layer);
    for (std::int64_t token = 0; token < capacity; ++token) {
      const KvRun run = cache->run_at(layer, token);
      EXPECT_EQ(run.num_tokens, capacity - token);
      for (std::int64_t head = 0; head < kShape.num_kv_heads; ++head) {
        const float* row_k = static_cast<float*>(run.k) + head * run.head_stride_k;
        const float* row_v = static_cast<float*>(run.v) + head * run.head_stride_v;
        EXPECT_EQ(row_k, static_cast<float*>(k.data) + row_offset(k, 0, token, head));
        EXPECT_EQ(row_v, static_cast<float*>(v.data) + row_offset(v, 0, token, head));
        for (int d = 0; d < kShape.head_dim; ++d) EXPECT_TRUE(places.insert(row_k + d).second);
        for (int d = 0; d < kShape.head_dim_v; ++d) EXPECT_TRUE(places.insert(row_v + d).second);
      }
    }
    const KvRun first = cache->run_at(layer, 0), second = cache->run_at(layer, 1);
    EXPECT_EQ(static_cast<float*>(first.k) + first.token_stride_k, second.k);
    EXPECT_EQ(static_cast<float*>(first.v) + first.token_stride_v, second.v);
  }
}

TEST(ContiguousCache, RefusesMoreThanItHolds) {
  const auto cache = make(7);
  EXPECT_FALSE(cache->reserve(7));
  cache->set_length(5);
  EXPECT_FALSE(cache->reserve(2));
  const Status full = cache->reserve(3);
  ASSERT_TRUE(full);
  EXPECT_EQ(full->code, ErrorCode::invalid_argument);
  EXPECT_EQ(full->message,
            "3 tokens more: the cache holds 5 of at most 7; make the session with a larger context "
            "or shorten the text");
  cache->set_length(2);
  EXPECT_FALSE(cache->reserve(5));
}

TEST(ContiguousCache, SaysWhenThereIsNoMemory) {
  const auto cache = make_contiguous_cache(kShape, std::int64_t{1} << 50);
  ASSERT_FALSE(cache.ok());
}

}  // namespace
}  // namespace headrace
