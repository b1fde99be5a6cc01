// Draws of several rows at once: those of one sampler, whatever the threads.
#include "ops/host_sampler.h"

#include <gtest/gtest.h>

#include "tests/support/random.h"

namespace headrace {
namespace {

DeviceInfo host_of(int num_units) {
  DeviceInfo info = cpu_info().value();
  info.num_units = num_units;
  return info;
}

TEST(HostSampler, DrawsWhatOneSamplerDraws) {
  constexpr std::int64_t kVocabSize = 1000, kRows = 9, kDraws = 200;
  testing::Random random(3);
  std::vector<float> logits(kRows * kVocabSize);
  for (float& x : logits) x = static_cast<float>(3 * random.normal());
  std::vector<SamplingOptions> options;
  std::vector<std::vector<std::int32_t>> outputs;
  std::vector<std::uint64_t> mask((kVocabSize + 63) / 64, 0x00ff00ff00ff00ffu);
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    options.push_back({.temperature = i % 3 == 0 ? 0.0 : 1.5,
                       .top_p = i % 4 == 0 ? 0.8 : 1,
                       .repetition_penalty = i % 5 == 0 ? 1.4 : 1,
                       .seed = i});
    if (i % 2 == 0) options.back().num_logprobs = static_cast<int>(i % 7);
    // A history outside the vocabulary is the failure of its draw alone.
    outputs.push_back({static_cast<std::int32_t>(random.between(0, 999)), i == 75 ? -1 : 5});
  }
  Sampler sampler = std::move(Sampler::make(host_of(1)).value());
  for (const int num_units : {1, 2, 7}) {
    HostSampler several = std::move(HostSampler::make(host_of(num_units)).value());
    std::vector<RowDraw> draws;
    for (std::size_t i = 0; i < kDraws; ++i)
      draws.push_back({.row = static_cast<std::int64_t>(i) % kRows,
                       .options = &options[i],
                       .input = {.output = outputs[i], .sequence_id = i, .position = 2}});
    for (std::size_t i = 0; i < kDraws; i += 6) draws[i].input.mask = mask;
    ASSERT_FALSE(several.draw(logits.data(), kVocabSize, draws));
    for (std::size_t i = 0; i < kDraws; ++i) {
      SamplingInput input = draws[i].input;
      input.logits = std::span(logits).subspan(static_cast<std::size_t>(draws[i].row * kVocabSize),
                                               kVocabSize);
      const Result<Sample> good = sampler.sample(input, options[i]);
      ASSERT_EQ(draws[i].token.has_value(), good.ok()) << i;
      if (!good.ok()) {
        EXPECT_EQ(i, 75u);
        EXPECT_EQ(draws[i].failure->message, good.failure().message);
        continue;
      }
      EXPECT_FALSE(draws[i].failure);
      EXPECT_EQ(*draws[i].token, good.value().token);
      EXPECT_EQ(draws[i].logprob, good.value().logprob);
      const auto& top = good.value().top_logprobs;
      ASSERT_EQ(draws[i].top_logprobs.size(), top.size());
      for (std::size_t k = 0; k < top.size(); ++k) {
        EXPECT_EQ(draws[i].top_logprobs[k].token, top[k].token);
        EXPECT_EQ(draws[i].top_logprobs[k].logprob, top[k].logprob);
      }
    }
  }
}

}  // namespace
}  // namespace headrace
