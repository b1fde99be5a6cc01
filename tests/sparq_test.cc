// SparQ attention through the public API: with every component and key it is attention; a cache
// that grows token by token.
#include "headrace/sparq.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "support/errors.h"
#include "support/older_structs.h"
#include "support/random.h"

namespace {

using headrace::DType;
using headrace::SparqOptions;
using headrace::SparqTensors;
using headrace::TensorView;
using headrace::testing::error_of;
using headrace::testing::expect_older_structs;
using headrace::testing::expect_one_size;
using headrace::testing::failed;

constexpr std::int64_t kBatch = 2, kSeqlen = 300, kHeads = 4, kKvHeads = 2, kDim = 16;

// A cache without pages, whose sequences grow together.
struct Cache {
  std::vector<float> q, k, v;
  std::vector<float> components = std::vector<float>(kBatch * kSeqlen * kKvHeads * kDim, NAN);
  std::vector<float> v_sum = std::vector<float>(kBatch * kKvHeads * kDim);
  std::vector<float> out = std::vector<float>(kBatch * kHeads * kDim);
  std::vector<float> alpha = std::vector<float>(kBatch * kHeads);
  std::vector<std::int32_t> seqused_k = std::vector<std::int32_t>(kBatch);

  Cache() {
    headrace::testing::Random random(5);
    const auto fill = [&](std::vector<float>& x, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i) x.push_back(static_cast<float>(random.normal()));
    };
    fill(q, kBatch * kHeads * kDim);
    fill(k, kBatch * kSeqlen * kKvHeads * kDim);
    fill(v, kBatch * kSeqlen * kKvHeads * kDim);
  }
  TensorView keys(std::vector<float>& x) {
    return {x.data(), DType::f32, {kBatch, kSeqlen, kKvHeads, kDim}};
  }
  TensorView lengths() { return {seqused_k.data(), DType::i32, {kBatch}}; }
  SparqTensors tensors() {
    return {.q = {q.data(), DType::f32, {kBatch, kHeads, kDim}},
            .k = keys(k),
            .k_components = {components.data(), DType::f32, {kBatch, kKvHeads, kDim, kSeqlen}},
            .v = keys(v),
            .out = {out.data(), DType::f32, {kBatch, kHeads, kDim}},
            .v_sum = {v_sum.data(), DType::f32, {kBatch, kKvHeads, kDim}},
            .seqused_k = lengths(),
            .alpha = {alpha.data(), DType::f32, {kBatch, kHeads}}};
  }
  void append() {
    std::vector<std::int64_t> slots;
    for (std::int64_t b = 0; b < kBatch; ++b) slots.push_back(b * kSeqlen + seqused_k[0]);
    const SparqTensors t = tensors();
    headrace::sparq_append({.k = t.k,
                            .slot_mapping = {slots.data(), DType::i64, {kBatch}},
                            .k_components = t.k_components,
                            .v = t.v,
                            .v_sum = t.v_sum});
    for (std::int32_t& length : seqused_k) ++length;
  }
  std::vector<float> dense() {
    std::vector<float> result(out.size());
    const TensorView query(q.data(), DType::f32, {kBatch, 1, kHeads, kDim});
    const TensorView written(result.data(), DType::f32, {kBatch, 1, kHeads, kDim});
    headrace::attention_forward(
        {.q = query, .k = keys(k), .v = keys(v), .out = written, .seqused_k = lengths()});
    return result;
  }
};

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return most;
}

// Scores are below 16 and out is at most 4: attention in f32 errs by less than 2^-19 of that.
TEST(SparqApi, WithEveryKeyItIsAttention) {
  Cache cache;
  for (std::int64_t length = 1; length <= kSeqlen; ++length) {
    cache.append();
    if (length % 37 != 0 && length != kSeqlen) continue;
    for (const std::int64_t num_components : {1L, long{kDim}}) {
      headrace::sparq_attention(cache.tensors(),
                                {.num_components = num_components, .num_keys = kSeqlen});
      EXPECT_LT(largest_difference(cache.out, cache.dense()), 0x1p-17) << length;
      for (const float alpha : cache.alpha) EXPECT_EQ(alpha, 1.0f);
    }
  }
}

// Most of the softmax is in few keys, so that few keys give nearly the same.
TEST(SparqApi, FewKeysAreCloseToAttention) {
  Cache cache;
  for (float& x : cache.q) x *= 8;
  for (std::int64_t length = 0; length < kSeqlen; ++length) cache.append();
  const std::vector<float> dense = cache.dense();
  const SparqOptions options{.num_components = kDim / 2, .num_keys = 64, .local_window = 16};
  const SparqTensors tensors = cache.tensors();
  std::vector<char> memory(headrace::sparq_workspace_bytes(tensors, options));
  headrace::sparq_attention(tensors, options, {memory.data(), memory.size()});
  for (const float alpha : cache.alpha) EXPECT_TRUE(alpha > 0.5f && alpha <= 1.0f) << alpha;
  EXPECT_LT(largest_difference(cache.out, dense), 0.5);
  EXPECT_GT(largest_difference(cache.out, dense), 0.0);
}

TEST(SparqApi, ErrorsComeFromTheCall) {
  Cache cache;
  EXPECT_EQ(
      error_of([&] { headrace::sparq_attention(cache.tensors(), {}); }, HEADRACE_INVALID_ARGUMENT)
          .find("num_components=0: must be 1 to head_dim=16"),
      0u);
  EXPECT_EQ(
      error_of([&] { (void)headrace::sparq_workspace_bytes({}, {}); }, HEADRACE_INVALID_ARGUMENT)
          .find("q: not given"),
      0u);
  EXPECT_EQ(
      error_of([&] { headrace::sparq_append({}); }, HEADRACE_INVALID_ARGUMENT).find("k: not given"),
      0u);
  EXPECT_EQ(headrace_sparq_attention(nullptr, nullptr, nullptr, 0, nullptr),
            HEADRACE_INVALID_ARGUMENT);
  headrace_sparq_tensors tensors;
  headrace_sparq_options options;
  ASSERT_EQ(headrace_sparq_tensors_init(&tensors), HEADRACE_OK);
  ASSERT_EQ(headrace_sparq_options_init(&options), HEADRACE_OK);
  EXPECT_EQ(headrace_sparq_workspace_bytes(&tensors, &options, nullptr), HEADRACE_INVALID_ARGUMENT);
}

// Programs that know no codes keep working; other sizes were never there.
TEST(SparqApi, OlderAndOtherSizesOfItsStructs) {
  std::vector<float> x(6), y(6), z(6);
  headrace_sparq_tensors sparq;
  headrace_sparq_tensors_init(&sparq);
  sparq.q = TensorView(x.data(), DType::f32, {1, 1, 6});
  sparq.k = sparq.v = TensorView(x.data(), DType::f32, {1, 1, 1, 6});
  sparq.k_components = TensorView(x.data(), DType::f32, {1, 1, 6, 1});
  sparq.out = TensorView(y.data(), DType::f32, {1, 1, 6});
  headrace_sparq_options sparq_options;
  headrace_sparq_options_init(&sparq_options);
  sparq_options.num_components = sparq_options.num_keys = 1;
  headrace_quantised_kv codes;
  headrace_quantised_kv_init(&codes);
  codes.k_scale = TensorView(x.data(), DType::f32, {1, 1, 1});
  headrace_sparq_tensors defaults;
  headrace_sparq_tensors_init(&defaults);
  headrace_sparq_tensors with_scale = sparq;
  with_scale.quantised = &codes;
  expect_older_structs<headrace_sparq_tensors>(
      "sparq_tensors", with_scale, defaults, offsetof(headrace_sparq_tensors, quantised), 1,
      [&](const auto& t) {
        return failed(headrace_sparq_attention(&t, &sparq_options, nullptr, 0, nullptr));
      });
  expect_one_size<headrace_sparq_options>("sparq_options", sparq_options, [&](const auto& o) {
    return headrace_sparq_attention(&sparq, &o, nullptr, 0, nullptr);
  });
  const std::int64_t slot = 0;
  headrace_sparq_append_tensors append;
  headrace_sparq_append_tensors_init(&append);
  append.k = sparq.k;
  append.slot_mapping = TensorView(&slot, DType::i64, {1});
  append.k_components = TensorView(z.data(), DType::f32, {1, 1, 6, 1});
  for (std::size_t size = sizeof(std::size_t); size <= sizeof append; size += sizeof size) {
    const auto cut_append =
        headrace::testing::cut(append, size, headrace::testing::garbage<decltype(append)>());
    EXPECT_EQ(headrace_sparq_append(&cut_append, nullptr),
              size < offsetof(headrace_sparq_append_tensors, k_slots) ? HEADRACE_INVALID_ARGUMENT
                                                                      : HEADRACE_OK)
        << size;
  }
}

}  // namespace
