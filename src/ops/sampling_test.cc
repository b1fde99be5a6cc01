// Filters, penalties and log-probabilities, compared with a reference in double and with values
// computed by hand.
#include "ops/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/random.h"
#include "tests/support/sampling_reference.h"

namespace headrace {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
using Logits = std::vector<float>;
using Tokens = std::vector<std::int32_t>;

Sampler make_sampler(const char* device = "cpu") {
  return std::move(Sampler::make(device_from_text(device).value()).value());
}

Tokens kept(Sampler& sampler, const Logits& logits, const SamplingOptions& options) {
  const Distribution left = sampler.distribution({.logits = logits}, options).value();
  Tokens tokens;
  for (const std::int32_t token : left.tokens)  // without a filter: all
    if (!std::isinf(logits[static_cast<std::size_t>(token)])) tokens.push_back(token);
  return tokens;
}
Tokens kept(const Logits& logits, const SamplingOptions& options) {
  Sampler sampler = make_sampler();
  return kept(sampler, logits, options);
}

void expect_as_reference(Sampler& sampler, const Logits& logits, const SamplingOptions& o) {
  ASSERT_FALSE(check_sampling_options(o, static_cast<std::int64_t>(logits.size())));
  const auto expected = testing::reference_distribution(logits, o);
  Tokens expected_tokens;
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (expected.is_kept[i]) expected_tokens.push_back(static_cast<std::int32_t>(i));
  ASSERT_EQ(kept(sampler, logits, o), expected_tokens)
      << "order " << static_cast<int>(o.order) << " vocabulary " << logits.size() << " T "
      << o.temperature << " top_k " << o.top_k << " top_p " << o.top_p << " min_p " << o.min_p;
  const Distribution left = sampler.distribution({.logits = logits}, o).value();
  for (std::size_t i = 0; i < left.tokens.size(); ++i) {
    const double p = static_cast<double>(left.weights[i]) / left.sum;
    const double exact = expected.probability[static_cast<std::size_t>(left.tokens[i])];
    // exp(x) for |x| <= 88 and x rounded twice: 88 * 2^-23; less than 2^-126 is 0.
    ASSERT_NEAR(p, exact, 1.1e-5 * exact + 1.2e-38) << "token " << left.tokens[i];
  }
}

Logits random_logits(testing::Random& random) {
  const std::int64_t sizes[] = {1, 2, 3, 10, 63, 64, 65, 100, 1000, 3000};
  Logits logits(static_cast<std::size_t>(random.pick(sizes)));
  const double scales[] = {0.1, 1, 3, 10, 50};
  const double scale = random.pick(scales);
  const bool has_ties = random.chance(40), has_bans = random.chance(30);
  for (float& logit : logits) {
    const double value = random.normal() * scale;
    logit = static_cast<float>(has_ties ? std::round(value * 2) / 2 : value);
    if (has_bans && random.chance(30)) logit = -kInf;
  }
  logits[static_cast<std::size_t>(
      random.between(0, static_cast<std::int64_t>(logits.size()) - 1))] = 1.5f;
  return logits;
}

TEST(Sampling, KeepsWhatTheReferenceKeeps) {
  testing::Random random(1);
  Sampler sampler = make_sampler();
  for (int i = 0; i < 3000; ++i) {
    const Logits logits = random_logits(random);
    SamplingOptions o;
    const SamplingOrder orders[] = {SamplingOrder::vllm, SamplingOrder::transformers,
                                    SamplingOrder::llama_cpp};
    o.order = random.pick(orders);
    const double temperatures[] = {0.05, 0.5, 0.8, 1, 1.7, 20};
    o.temperature = random.pick(temperatures);
    if (random.chance(60))
      o.top_k = random.between(1, static_cast<std::int64_t>(logits.size()) + 3);
    if (random.chance(60)) o.top_p = random.chance(20) ? 1e-6 : random.uniform() + 1e-9;
    if (random.chance(20)) o.top_p = 1 - random.uniform() * 1e-3;
    if (random.chance(50)) o.min_p = random.chance(20) ? 1.0 : random.uniform() * 0.3;
    expect_as_reference(sampler, logits, o);
  }
}

TEST(Sampling, EdgeCasesOfTheFilters) {
  Logits one_hot(50, -kInf), equal(100, 3.0f), rising(100);
  one_hot[7] = -1e30f;
  for (std::size_t i = 0; i < rising.size(); ++i) rising[i] = static_cast<float>(i) * 0.1f;
  for (const auto order :
       {SamplingOrder::vllm, SamplingOrder::transformers, SamplingOrder::llama_cpp}) {
    const SamplingOptions plain{.order = order};
    auto o = plain;
    o.top_k = 100;
    EXPECT_EQ(kept(rising, o).size(), 100u);
    o.top_k = 1000;
    EXPECT_EQ(kept(rising, o).size(), 100u);
    o.top_k = 1;
    EXPECT_EQ(kept(rising, o), Tokens{99});
    EXPECT_EQ(kept(one_hot, o), Tokens{7});
    o = plain;
    o.top_p = 1;
    EXPECT_EQ(kept(rising, o).size(), 100u);
    o.top_p = 1e-300;
    EXPECT_EQ(kept(rising, o), Tokens{99});
    EXPECT_EQ(kept(equal, o), Tokens{0});
    o.top_p = 0.3;
    EXPECT_EQ(kept(equal, o).size(), 30u);  // the sum reaches 0.3 with the 30th
    EXPECT_EQ(kept(equal, o).back(), 29);
    EXPECT_EQ(kept(one_hot, o), Tokens{7});
    o = plain;
    o.min_p = 1;
    EXPECT_EQ(kept(rising, o), Tokens{99});
    EXPECT_EQ(kept(equal, o).size(), 100u);
    EXPECT_EQ(kept({1.0f, 5.0f, 2.0f, 5.0f, -kInf}, o), (Tokens{1, 3}));
    EXPECT_EQ(kept(one_hot, o), Tokens{7});
  }
}

TEST(Sampling, MinPIsExactAtTheBoundary) {
  int num_kept = 0;
  for (int percent = 1; percent < 100; ++percent) {
    SamplingOptions o;
    o.min_p = percent / 100.0;
    const float border = static_cast<float>(std::log(o.min_p));  // on either side of it
    const bool is_kept = static_cast<double>(border) >= std::log(o.min_p);
    EXPECT_EQ(kept({0.0f, border}, o).size(), is_kept ? 2u : 1u) << percent;
    num_kept += is_kept ? 1 : 0;
  }
  EXPECT_GT(num_kept, 20);
  EXPECT_LT(num_kept, 80);
}

TEST(Sampling, TopPOfAFlatDistribution) {
  testing::Random random(2);
  Logits logits(20000);
  for (float& logit : logits) logit = static_cast<float>(random.uniform() * 0.01);
  Sampler sampler = make_sampler();
  for (const double top_p : {0.001, 0.0128, 0.1, 0.5, 0.999}) {
    SamplingOptions o;
    o.top_p = top_p;
    expect_as_reference(sampler, logits, o);
  }
}

// ---- presets ----

Logits log_of(const std::vector<double>& p) {
  Logits logits;
  for (const double value : p) logits.push_back(static_cast<float>(std::log(value)));
  return logits;
}

TEST(SamplingOrders, TemperatureComesLastInLlamaCpp) {
  // At temperature 2 the probabilities are as the square roots: 0.42, 0.24, 0.17, 0.17.
  const auto logits = log_of({0.6, 0.2, 0.1, 0.1});
  SamplingOptions o{.temperature = 2, .top_p = 0.55};
  o.order = SamplingOrder::vllm;
  EXPECT_EQ(kept(logits, o), (Tokens{0, 1}));
  o.order = SamplingOrder::transformers;
  EXPECT_EQ(kept(logits, o), (Tokens{0, 1}));
  o.order = SamplingOrder::llama_cpp;
  EXPECT_EQ(kept(logits, o), Tokens{0});
  // min_p 0.3 of the largest: 0.18 at temperature 1; 0.125 at temperature 2.
  o = {.temperature = 2, .min_p = 0.3};
  EXPECT_EQ(kept(logits, o), (Tokens{0, 1, 2, 3}));
  o.order = SamplingOrder::llama_cpp;
  EXPECT_EQ(kept(logits, o), (Tokens{0, 1}));
}

TEST(SamplingOrders, VllmAppliesMinPBeforeTopP) {
  // min_p 0.45 leaves 0.4, 0.3, 0.2, that is 0.44, 0.33, 0.22: two of them reach 0.75.
  const auto logits = log_of({0.4, 0.3, 0.2, 0.1});
  SamplingOptions o{.top_p = 0.75, .min_p = 0.45};
  EXPECT_EQ(kept(logits, o), (Tokens{0, 1}));
  o.order = SamplingOrder::transformers;
  EXPECT_EQ(kept(logits, o), (Tokens{0, 1, 2}));
  o.order = SamplingOrder::llama_cpp;
  EXPECT_EQ(kept(logits, o), (Tokens{0, 1, 2}));
}

TEST(SamplingOrders, LlamaCppKeepsExactlyK) {
  const Logits logits = {0.0f, 1.0f, 1.0f, 2.0f, 1.0f};
  SamplingOptions o{.top_k = 3};
  EXPECT_EQ(kept(logits, o), (Tokens{1, 2, 3, 4}));
  o.order = SamplingOrder::transformers;
  EXPECT_EQ(kept(logits, o), (Tokens{1, 2, 3, 4}));
  o.order = SamplingOrder::llama_cpp;
  EXPECT_EQ(kept(logits, o), (Tokens{1, 2, 3}));
}

// ---- biases and penalties ----

// Logits after biases and penalties, relative to the first one.
std::vector<double> changed(const Logits& logits, SamplingOptions o, const Tokens& prompt,
                            const Tokens& output) {
  o.num_logprobs = static_cast<int>(logits.size());
  o.logprobs_mode = LogprobsMode::processed;
  Sampler sampler = make_sampler();
  const Sample sample =
      sampler.sample({.logits = logits, .prompt = prompt, .output = output}, o).value();
  std::vector<double> values(logits.size());
  for (const TokenLogprob& top : sample.top_logprobs)
    values[static_cast<std::size_t>(top.token)] = top.logprob;
  for (std::size_t i = values.size(); i-- > 0;) values[i] -= values[0];
  return values;
}
void expect_near(const std::vector<double>& got, const std::vector<double>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 3e-6) << i;
}

TEST(SamplingPenalties, ByHand) {
  const Logits logits = {0.0f, 2.0f, -2.0f, 0.5f, 1.0f};
  const Tokens prompt = {1, 2}, output = {2, 4, 4};
  SamplingOptions o{.repetition_penalty = 2};
  expect_near(changed(logits, o, prompt, output), {0, 1, -4, 0.5, 0.5});
  o.repetition_window = 2;  // 4, 4
  expect_near(changed(logits, o, prompt, output), {0, 2, -2, 0.5, 0.5});
  o.repetition_window = 4;  // 2, 2, 4, 4
  expect_near(changed(logits, o, prompt, output), {0, 2, -4, 0.5, 0.5});
  o.repetition_window = 0;
  expect_near(changed(logits, o, prompt, output), {0, 2, -2, 0.5, 1});
  o = {.presence_penalty = 0.25};
  expect_near(changed(logits, o, prompt, output), {0, 2, -2.25, 0.5, 0.75});
  o = {.frequency_penalty = 0.25};
  expect_near(changed(logits, o, prompt, output), {0, 2, -2.25, 0.5, 0.5});
  o = {.repetition_penalty = 2, .presence_penalty = 0.5, .frequency_penalty = 0.25};
  expect_near(changed(logits, o, prompt, output), {0, 1, -4.75, 0.5, -0.5});
  // Counts of the window, prompt included: 1 once, 2 twice, 4 twice.
  o.order = SamplingOrder::llama_cpp;
  expect_near(changed(logits, o, prompt, output), {0, 0.25, -5, 0.5, -0.5});
  o.repetition_window = 3;  // 2, 4, 4
  expect_near(changed(logits, o, prompt, output), {0, 2, -4.75, 0.5, -0.5});
}

// Bias, then repetition, then presence and frequency penalties, in double. Repetition counts the
// window of prompt and output; presence and frequency count the output, with llama.cpp that window.
std::vector<double> penalised(const Logits& logits, const SamplingOptions& o, const Tokens& prompt,
                              const Tokens& output) {
  std::vector<double> values(logits.begin(), logits.end());
  for (const LogitBias& bias : o.logit_bias)
    values[static_cast<std::size_t>(bias.token)] += static_cast<double>(bias.value);
  Tokens window = prompt;
  window.insert(window.end(), output.begin(), output.end());
  const auto length = static_cast<std::int64_t>(window.size());
  if (o.repetition_window && *o.repetition_window < length)
    window.erase(window.begin(), window.end() - *o.repetition_window);
  const Tokens& counted = o.order == SamplingOrder::llama_cpp ? window : output;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto token = static_cast<std::int32_t>(i);
    if (std::count(window.begin(), window.end(), token) > 0)
      values[i] =
          values[i] > 0 ? values[i] / o.repetition_penalty : values[i] * o.repetition_penalty;
    const auto count = static_cast<double>(std::count(counted.begin(), counted.end(), token));
    if (count > 0) values[i] -= o.presence_penalty + o.frequency_penalty * count;
  }
  for (std::size_t i = values.size(); i-- > 0;) values[i] -= values[0];
  return values;
}

TEST(SamplingPenalties, MatchTheDefinitionInEveryOrder) {
  testing::Random random(4);
  constexpr std::int64_t kVocabulary = 9;
  const auto tokens = [&](std::int64_t count) {
    Tokens drawn;
    for (std::int64_t i = 0; i < count; ++i)
      drawn.push_back(static_cast<std::int32_t>(random.between(0, kVocabulary - 2)));
    return drawn;
  };
  const double strengths[] = {1.5, -0.75, 0.25};
  for (const SamplingOrder order :
       {SamplingOrder::vllm, SamplingOrder::transformers, SamplingOrder::llama_cpp})
    for (int with = 0; with < 16; ++with)  // of bias and the three penalties
      for (int i = 0; i < 30; ++i) {
        Logits logits;
        for (std::int64_t j = 0; j < kVocabulary; ++j)
          logits.push_back(static_cast<float>(3 * random.normal()));
        SamplingOptions o{.order = order};
        if ((with & 1) != 0) o.logit_bias = {{3, 1.5f}, {0, -2.0f}, {3, 0.25f}};
        if ((with & 2) != 0) o.repetition_penalty = random.chance(50) ? 1.7 : 0.6;
        if ((with & 4) != 0) o.presence_penalty = random.pick(strengths);
        if ((with & 8) != 0) o.frequency_penalty = random.pick(strengths);
        if (random.chance(60)) o.repetition_window = random.between(0, 14);
        const Tokens prompt = tokens(random.between(0, 6)), output = tokens(random.between(0, 6));
        SCOPED_TRACE("order " + std::to_string(static_cast<int>(order)) + ", with " +
                     std::to_string(with));
        expect_near(changed(logits, o, prompt, output), penalised(logits, o, prompt, output));
      }
}

TEST(SamplingPenalties, BiasComesBeforePenalties) {
  const Logits logits = {0.0f, 2.0f, -2.0f};
  SamplingOptions o{.repetition_penalty = 2, .logit_bias = {{2, 4.0f}, {1, -1.0f}, {1, -0.5f}}};
  expect_near(changed(logits, o, {1, 2}, {}), {0, 0.25, 1});
  o.logit_bias = {{1, -kInf}};
  EXPECT_EQ(kept({0.0f, 0.5f}, {.logit_bias = {{0, 1.0f}}}), (Tokens{0, 1}));
  Sampler sampler = make_sampler();
  o.temperature = 0;
  o.repetition_penalty = 1;
  EXPECT_EQ(sampler.sample({.logits = logits}, o).value().token, 0);
}

TEST(SamplingPenalties, LeaveNoState) {
  const Logits logits = {0.0f, 2.0f, -2.0f, 0.5f, 1.0f};
  const Tokens history = {1, 2, 4, 4};
  Sampler sampler = make_sampler();
  const SamplingOptions o{.presence_penalty = 0.5, .frequency_penalty = 0.25, .num_logprobs = 5};
  const SamplingInput input{.logits = logits, .prompt = {}, .output = history};
  const Sample first = sampler.sample(input, o).value();
  const std::vector<TokenLogprob> before(first.top_logprobs.begin(), first.top_logprobs.end());
  const Tokens wrong = {1, 5};
  ASSERT_FALSE(sampler.sample({.logits = logits, .prompt = {}, .output = wrong}, o).ok());
  const Sample again = sampler.sample(input, o).value();
  EXPECT_EQ(again.token, first.token);
  for (std::size_t i = 0; i < before.size(); ++i)
    EXPECT_EQ(again.top_logprobs[i].logprob, before[i].logprob);
}

// ---- limits ----

// The limits of a range belong to it, the next number does not.
TEST(SamplingOptionRanges, IncludeTheirLimits) {
  const struct {
    double SamplingOptions::*option;
    double least, most;
  } ranges[] = {{&SamplingOptions::temperature, 1e-5, 1e5},
                {&SamplingOptions::min_p, 0, 1},
                {&SamplingOptions::repetition_penalty, 1e-3, 1e3}};
  for (const auto& [option, least, most] : ranges)
    for (const auto& [limit, beyond] : {std::pair{least, -1.0}, {most, 1e9}}) {
      SamplingOptions o;
      o.*option = limit;
      EXPECT_FALSE(check_sampling_options(o, 10)) << limit;
      o.*option = std::nextafter(limit, beyond);
      EXPECT_TRUE(check_sampling_options(o, 10)) << limit << " and a little beyond";
    }
  EXPECT_FALSE(check_sampling_options({.temperature = 0}, 10)) << "greedy";
  EXPECT_FALSE(check_sampling_options({.top_p = 1}, 10));
  EXPECT_FALSE(check_sampling_options({.top_p = std::nextafter(0.0, 1.0)}, 10));
  EXPECT_TRUE(check_sampling_options({.top_p = 0}, 10));
  EXPECT_TRUE(check_sampling_options({.top_p = std::nextafter(1.0, 2.0)}, 10));
  for (const int count : {0, kMaxLogprobs})
    EXPECT_FALSE(check_sampling_options({.num_logprobs = count}, 10)) << count;
  for (const int count : {-1, kMaxLogprobs + 1})
    EXPECT_TRUE(check_sampling_options({.num_logprobs = count}, 10)) << count;
}

// ---- logprobs ----

TEST(SamplingLogprobs, AreThoseOfTheRawLogits) {
  const auto logits = log_of({0.1, 0.4, 0.3, 0.2});
  const Tokens history = {1, 1};
  Sampler sampler = make_sampler();
  SamplingOptions o{.temperature = 0.5, .top_k = 2, .frequency_penalty = 2, .num_logprobs = 3};
  const SamplingInput input{.logits = logits, .prompt = {}, .output = history};
  const Sample raw = sampler.sample(input, o).value();
  EXPECT_TRUE(raw.token == 2 || raw.token == 3);
  EXPECT_NEAR(raw.logprob, std::log(raw.token == 2 ? 0.3 : 0.2), 1e-6);
  ASSERT_EQ(raw.top_logprobs.size(), 3u);
  const Tokens falling = {1, 2, 3};
  const double p[] = {0.4, 0.3, 0.2};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(raw.top_logprobs[i].token, falling[i]);
    EXPECT_NEAR(raw.top_logprobs[i].logprob, std::log(p[i]), 1e-6);
  }
  // Of the draw: tokens 2 and 3 are left, as 0.09 to 0.04.
  o.logprobs_mode = LogprobsMode::processed;
  const Sample drawn = sampler.sample(input, o).value();
  EXPECT_EQ(drawn.token, raw.token);
  ASSERT_EQ(drawn.top_logprobs.size(), 2u);
  EXPECT_EQ(drawn.top_logprobs[0].token, 2);
  EXPECT_NEAR(drawn.top_logprobs[0].logprob, std::log(9.0 / 13), 1e-6);
  EXPECT_NEAR(drawn.top_logprobs[1].logprob, std::log(4.0 / 13), 1e-6);
  o.temperature = 0;
  for (const int count : {1, 2, 4}) {  // greedy: one token has all of the probability
    o.num_logprobs = count;
    const Sample greedy = sampler.sample(input, o).value();
    EXPECT_EQ(greedy.logprob, 0.0f);
    ASSERT_EQ(greedy.top_logprobs.size(), 1u);
    EXPECT_EQ(greedy.top_logprobs[0].token, greedy.token);
    EXPECT_EQ(greedy.top_logprobs[0].logprob, 0.0f);
  }
  o.num_logprobs = 0;
  EXPECT_TRUE(sampler.sample(input, o).value().top_logprobs.empty());
}

TEST(SamplingOptions, BiasesEndAtTheirLimits) {
  const auto is_good = [](std::int32_t token, float value) {
    return !check_sampling_options({.logit_bias = {{token, value}}}, 4);
  };
  for (const float good : {-1e6f, 0.0f, 1e6f, -kInf}) EXPECT_TRUE(is_good(3, good)) << good;
  for (const float bad : {std::nextafter(-1e6f, -kInf), std::nextafter(1e6f, kInf), kInf,
                          std::numeric_limits<float>::quiet_NaN()})
    EXPECT_FALSE(is_good(3, bad)) << bad;
  EXPECT_TRUE(is_good(0, 1));
  EXPECT_FALSE(is_good(-1, 1));
  EXPECT_FALSE(is_good(4, 1));
}

// Filters, penalties and the temperature change the draw, and no raw logprob.
TEST(SamplingLogprobs, RawOnesDoNotDependOnTheOptions) {
  const double p[] = {0.1, 0.4, 0.3, 0.2};
  const auto logits = log_of({0.1, 0.4, 0.3, 0.2});
  const Tokens history = {1, 0}, falling = {1, 2, 3, 0};
  const SamplingOptions filters[] = {{},
                                     {.top_k = 1},
                                     {.top_k = 2},
                                     {.top_p = 0.5},
                                     {.min_p = 0.7},
                                     {.top_k = 3, .top_p = 0.8, .min_p = 0.2}};
  const SamplingOptions penalties[] = {{},
                                       {.repetition_penalty = 1.5},
                                       {.presence_penalty = 0.5},
                                       {.frequency_penalty = 0.5},
                                       {.logit_bias = {{2, 0.5f}}}};
  Sampler sampler = make_sampler();
  for (const auto order :
       {SamplingOrder::vllm, SamplingOrder::transformers, SamplingOrder::llama_cpp})
    for (const double temperature : {0.0, 0.5, 1.0, 3.0})
      for (const SamplingOptions& filter : filters)
        for (SamplingOptions o : penalties) {
          o.order = order;
          o.temperature = temperature;
          o.top_k = filter.top_k;
          o.top_p = filter.top_p;
          o.min_p = filter.min_p;
          o.num_logprobs = 4;
          const Sample sample = sampler.sample({.logits = logits, .output = history}, o).value();
          SCOPED_TRACE(format_text("order {} T {} top_k {} top_p {} min_p {} penalties {} {} {}",
                                   static_cast<int>(order), temperature, o.top_k, o.top_p, o.min_p,
                                   o.repetition_penalty, o.presence_penalty, o.frequency_penalty));
          EXPECT_NEAR(sample.logprob, std::log(p[sample.token]), 1e-6);
          ASSERT_EQ(sample.top_logprobs.size(), 4u);
          for (std::size_t i = 0; i < 4; ++i) {
            EXPECT_EQ(sample.top_logprobs[i].token, falling[i]);
            EXPECT_NEAR(sample.top_logprobs[i].logprob, std::log(p[falling[i]]), 1e-6);
          }
        }
}

}  // namespace
}  // namespace headrace
