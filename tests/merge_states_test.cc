// The merge of attention states through the public API: attention over a prefix and a suffix is
// attention over both.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "headrace/headrace.hpp"
#include "support/errors.h"
#include "support/random.h"

namespace {

using headrace::DType;
using headrace::TensorView;
using headrace::testing::error_of;

constexpr std::int64_t kBatch = 2, kSeqlenQ = 3, kSeqlenK = 40, kHeads = 2, kDim = 16;

struct State {
  std::vector<float> out = std::vector<float>(kBatch * kSeqlenQ * kHeads * kDim);
  std::vector<float> lse = std::vector<float>(kBatch * kHeads * kSeqlenQ);
  TensorView out_view() { return {out.data(), DType::f32, {kBatch, kSeqlenQ, kHeads, kDim}}; }
  TensorView lse_view() { return {lse.data(), DType::f32, {kBatch, kHeads, kSeqlenQ}}; }
};

std::vector<float> random_floats(std::int64_t count, std::uint64_t seed) {
  headrace::testing::Random random(seed);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& x : values) x = static_cast<float>(random.normal());
  return values;
}

// Scores are below 16 and out is at most 4: attention in f32 errs by less than 2^-19 of that.
TEST(MergeStatesApi, PartsOfTheKeysAreAttentionOverAll) {
  std::vector<float> q = random_floats(kBatch * kSeqlenQ * kHeads * kDim, 1);
  std::vector<float> k = random_floats(kBatch * kSeqlenK * kHeads * kDim, 2);
  std::vector<float> v = random_floats(kBatch * kSeqlenK * kHeads * kDim, 3);
  const TensorView q_view(q.data(), DType::f32, {kBatch, kSeqlenQ, kHeads, kDim});
  const TensorView k_view(k.data(), DType::f32, {kBatch, kSeqlenK, kHeads, kDim});
  const TensorView v_view(v.data(), DType::f32, {kBatch, kSeqlenK, kHeads, kDim});
  const auto attend = [&](State& state, std::int64_t first, std::int64_t last) {
    headrace::attention_forward(q_view, *k_view.slice(1, first, last),
                                *v_view.slice(1, first, last), state.out_view(), state.lse_view());
  };
  State whole, parts[4], merged;
  attend(whole, 0, kSeqlenK);
  attend(parts[0], 0, 7);
  attend(parts[1], 7, 7);  // no key
  attend(parts[2], 7, 8);
  attend(parts[3], 8, kSeqlenK);
  std::vector<headrace_tensor> outs, lses;
  for (State& part : parts) {
    outs.push_back(part.out_view());
    lses.push_back(part.lse_view());
  }
  headrace::merge_states(outs, lses, merged.out_view(), merged.lse_view());
  for (std::size_t i = 0; i < whole.out.size(); ++i)
    EXPECT_NEAR(merged.out[i], whole.out[i], 0x1p-17) << i;
  for (std::size_t i = 0; i < whole.lse.size(); ++i)
    EXPECT_NEAR(merged.lse[i], whole.lse[i], 0x1p-17) << i;
  // In place, without an lse.
  headrace::merge_states(outs, lses, parts[0].out_view());
  EXPECT_EQ(parts[0].out, merged.out);
  EXPECT_EQ(
      error_of([&] { headrace::merge_states(outs, std::span(lses).first(3), merged.out_view()); },
               HEADRACE_INVALID_ARGUMENT),
      "lses: must have one entry per state, as outs; pass the lse of every state");
  EXPECT_EQ(error_of([&] { headrace::merge_states({}, {}, merged.out_view()); },
                     HEADRACE_INVALID_ARGUMENT)
                .find("num_states=0: "),
            0u);
  EXPECT_EQ(headrace_merge_states(nullptr, nullptr), HEADRACE_INVALID_ARGUMENT);
}

}  // namespace
