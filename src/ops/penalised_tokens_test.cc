// The tokens of a history that penalties change, and how often they are counted.
#include "ops/penalised_tokens.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/support/random.h"

namespace headrace {
namespace {

using Tokens = std::vector<std::int32_t>;
using Counts = std::map<std::int32_t, std::int32_t>;

constexpr std::size_t kVocabSize = 50;

// Each token once.
Counts counts_of(std::span<const TokenCount> tokens) {
  Counts counts;
  for (const TokenCount& of : tokens) EXPECT_TRUE(counts.emplace(of.token, of.count).second);
  return counts;
}

Counts counts_of(const Tokens& tokens) {
  Counts counts;
  for (const std::int32_t token : tokens) ++counts[token];
  return counts;
}

TEST(PenalisedTokens, AreThoseOfTheWindowAndOfTheOutput) {
  testing::Random random(5);
  PenalisedTokens penalised;
  for (int i = 0; i < 2000; ++i) {
    Tokens prompt(static_cast<std::size_t>(random.between(0, 20))),
        output(static_cast<std::size_t>(random.between(0, 20)));
    for (Tokens* tokens : {&prompt, &output})
      for (std::int32_t& token : *tokens)
        token = static_cast<std::int32_t>(random.between(0, kVocabSize - 1));
    SamplingOptions o{.repetition_penalty = random.chance(50) ? 1.5 : 1,
                      .presence_penalty = random.chance(30) ? 0.5 : 0,
                      .frequency_penalty = random.chance(30) ? 0.5 : 0,
                      .order = static_cast<SamplingOrder>(random.between(0, 2))};
    if (random.chance(70)) o.repetition_window = random.between(0, 50);
    Tokens window = prompt;
    window.insert(window.end(), output.begin(), output.end());
    const auto all = std::ssize(window);
    window.erase(window.begin(), window.end() - std::min(all, o.repetition_window.value_or(all)));
    ASSERT_FALSE(penalised.collect({.prompt = prompt, .output = output}, o, kVocabSize));
    const bool is_counted = o.presence_penalty != 0 || o.frequency_penalty != 0;
    const Tokens& counted = o.order == SamplingOrder::llama_cpp ? window : output;
    EXPECT_EQ(has_penalties(o), o.repetition_penalty != 1 || is_counted);
    ASSERT_EQ(counts_of(penalised.repeated()),
              counts_of(o.repetition_penalty != 1 ? window : Tokens{}));
    ASSERT_EQ(counts_of(penalised.counted()), counts_of(is_counted ? counted : Tokens{}));
  }
}

TEST(PenalisedTokens, OfABadHistoryLeaveNothingBehind) {
  PenalisedTokens penalised;
  const SamplingOptions o{.repetition_penalty = 1.5, .frequency_penalty = 1};
  const Tokens good = {3, 4, 3}, bad = {3, static_cast<std::int32_t>(kVocabSize)}, below = {3, -1};
  for (const Tokens& tokens : {bad, below}) {
    const Status failed = penalised.collect({.output = tokens}, o, kVocabSize);
    ASSERT_TRUE(failed);
    EXPECT_EQ(failed->code, ErrorCode::invalid_argument);
    ASSERT_FALSE(penalised.collect({.output = good}, o, kVocabSize));
    EXPECT_EQ(counts_of(penalised.repeated()), (Counts{{3, 2}, {4, 1}}));
    EXPECT_EQ(counts_of(penalised.counted()), (Counts{{3, 2}, {4, 1}}));
  }
  ASSERT_FALSE(penalised.collect({.output = bad}, {}, kVocabSize));  // no penalties
  EXPECT_TRUE(penalised.repeated().empty());
  EXPECT_FALSE(changes_logits({}));
  EXPECT_TRUE(changes_logits({.logit_bias = {{1, 2.0f}}}));
}

}  // namespace
}  // namespace headrace
