// RoPE's frequencies and the append to a paged KV cache through the public API: the shared library,
// kv_cache.h and kv_cache.hpp.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "headrace/kv_cache.hpp"
#include "support/errors.h"

namespace {

using headrace::DType;
using headrace::KvCache;
using headrace::KvLayout;
using headrace::TensorView;
using headrace::testing::error_of;

TEST(RopeApi, FrequenciesOfTheOptions) {
  using headrace::RopeOptions;
  using headrace::RopeScaling;
  const auto plain = headrace::rope_frequencies({.rot_dim = 4, .base = 100});
  EXPECT_EQ(plain.frequencies, (std::vector<double>{1, 0.1}));
  EXPECT_EQ(plain.attention_factor, 1);
  const RopeOptions yarn{.scaling = RopeScaling::yarn,
                         .rot_dim = 8,
                         .factor = 4,
                         .original_context_length = 64,
                         .attention_factor = 0.5};
  EXPECT_EQ(headrace::rope_frequencies(yarn).attention_factor, 0.5);
  const double own[] = {3, 2, 1};
  EXPECT_EQ(headrace::rope_frequencies({.frequencies = own}).frequencies,
            (std::vector<double>{3, 2, 1}));
  error_of([&] { static_cast<void>(RopeOptions{.rot_dim = 4, .frequencies = own}.to_c()); },
           HEADRACE_INVALID_ARGUMENT);
  for (const std::int64_t rot_dim : {-2, 0, 3, 578})
    EXPECT_EQ(error_of([&] { headrace::rope_frequencies({.rot_dim = rot_dim}); },
                       HEADRACE_INVALID_ARGUMENT),
              "rot_dim=" + std::to_string(rot_dim) +
                  ": must be even and 2 to 576; pass at most head_dim");
  headrace_rope_options c;
  ASSERT_EQ(headrace_rope_options_init(&c), HEADRACE_OK);
  c.rot_dim = 4;
  double frequencies[2];
  EXPECT_EQ(headrace_rope_frequencies(&c, frequencies, 2, nullptr), HEADRACE_OK);
  EXPECT_EQ(headrace_rope_frequencies(&c, frequencies, 1, nullptr), HEADRACE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(headrace_last_error()).find("num_frequencies=1: must be 2"),
            std::string::npos);
  EXPECT_EQ(headrace_rope_frequencies(&c, nullptr, 2, nullptr), HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(headrace_rope_frequencies(nullptr, frequencies, 2, nullptr), HEADRACE_INVALID_ARGUMENT);
}

// A token's key, rotated by hand, through the C++ wrapper and the pages of a cache.
TEST(KvAppendApi, WritesToTheSlotsOfACache) {
  for (const KvLayout layout : {KvLayout::nhd, KvLayout::hnd}) {
    const KvCache cache({.num_layers = 2,
                         .num_kv_heads = 2,
                         .head_dim = 8,
                         .num_pages = 8,
                         .page_size = 4,
                         .dtype = DType::f32,
                         .layout = layout});
    const TensorView k_pages = cache.k_pages(1), v_pages = cache.v_pages(1);
    std::vector<float> qkv(2 * 6 * 8), q(2 * 2 * 8);  // two tokens of q, k and v with 2 heads
    for (std::size_t i = 0; i < qkv.size(); ++i) qkv[i] = static_cast<float>(i);
    const std::int64_t slots[] = {13, -1};
    const std::int32_t positions[] = {3, 9};
    const TensorView all(qkv.data(), DType::f32, {2, 6, 8});
    headrace::kv_append(
        {.k = *all.slice(1, 2, 4),
         .v = *all.slice(1, 4, 6),
         .k_pages = k_pages,
         .v_pages = v_pages,
         .slot_mapping = {slots, DType::i64, {2}},
         .q = *all.slice(1, 0, 2),
         .q_out = {q.data(), DType::f32, {2, 2, 8}},
         .positions = {positions, DType::i32, {2}}},
        {.rope = headrace::RopeOptions{.layout = headrace::RopeLayout::halves, .rot_dim = 2}});
    const auto at = [](const TensorView& pages, std::int64_t head, std::int64_t i) {
      return static_cast<const float*>(
          pages.data)[3 * pages.strides[0] + 1 * pages.strides[1] + head * pages.strides[2] + i];
    };
    for (std::int64_t head = 0; head < 2; ++head) {
      const auto base = static_cast<float>(16 + 8 * head);  // of k
      EXPECT_FLOAT_EQ(at(k_pages, head, 0), base * std::cos(3.f) - (base + 1) * std::sin(3.f));
      EXPECT_FLOAT_EQ(at(k_pages, head, 1), (base + 1) * std::cos(3.f) + base * std::sin(3.f));
      for (std::int64_t i = 0; i < 8; ++i) {
        const auto k = base + static_cast<float>(i);
        EXPECT_TRUE(i < 2 || at(k_pages, head, i) == k);
        EXPECT_EQ(at(v_pages, head, i), k + 16);
      }
    }
    EXPECT_FLOAT_EQ(q[16],
                    48 * std::cos(9.f) - 49 * std::sin(9.f));  // the token that is not stored
    EXPECT_EQ(error_of([&] { headrace::kv_append({}); }, HEADRACE_INVALID_ARGUMENT),
              "q and k: not given; one of them is required; pass q with q_out, or k and v with "
              "their pages and slot_mapping");
  }
}

}  // namespace
