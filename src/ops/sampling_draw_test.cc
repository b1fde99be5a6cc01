// The draw: its distribution, its dependences, and errors.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/sampling.h"
#include "ops/uniform.h"
#include "tests/support/golden_texts.h"
#include "tests/support/random.h"
#include "tests/support/sampling_reference.h"

namespace headrace {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
using Logits = std::vector<float>;

Sampler make_sampler(const char* device = "cpu") {
  return std::move(Sampler::make(device_from_text(device).value()).value());
}

// The value of chi-square with n degrees of freedom that chance exceeds once in 3.5 million
// (Wilson and Hilferty 1931; 5 is that quantile of the normal distribution).
double chi_square_limit(int n) {
  const double c = 2.0 / (9 * n);
  return n * std::pow(1 - c + 5 * std::sqrt(c), 3);
}

double chi_square(const std::vector<std::int64_t>& counts, const std::vector<double>& p) {
  double draws = 0, sum = 0;
  for (const auto count : counts) draws += static_cast<double>(count);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (p[i] == 0) {
      EXPECT_EQ(counts[i], 0) << i;
      continue;
    }
    sum += std::pow(static_cast<double>(counts[i]) - draws * p[i], 2) / (draws * p[i]);
  }
  return sum;
}

const Logits kTen = {0.0f, 1.0f, -1.0f, 2.0f, 0.5f, -kInf, 1.5f, 0.2f, -2.0f, 1.0f};

TEST(SamplingDraw, AMillionDrawsFollowTheDistribution) {
  Sampler sampler = make_sampler();
  for (const SamplingOptions& o :
       {SamplingOptions{}, SamplingOptions{.temperature = 0.7, .top_k = 6, .top_p = 0.9, .seed = 9},
        SamplingOptions{.temperature = 2, .min_p = 0.2, .seed = 10}}) {
    const auto expected = testing::reference_distribution(kTen, o);
    std::vector<std::int64_t> counts(kTen.size());
    for (std::int64_t position = 0; position < 1'000'000; ++position) {
      const SamplingInput input{.logits = kTen, .sequence_id = 3, .position = position};
      ++counts[static_cast<std::size_t>(sampler.sample(input, o).value().token)];
    }
    int kept = -1;
    for (const bool is_kept : expected.is_kept) kept += is_kept ? 1 : 0;
    EXPECT_LT(chi_square(counts, expected.probability), chi_square_limit(kept));
  }
}

TEST(SamplingDraw, ALargeVocabularyFollowsTheDistribution) {
  testing::Random random(4);
  Logits logits(3000);
  for (float& logit : logits) logit = static_cast<float>(random.normal());
  const auto expected = testing::reference_distribution(logits, {});
  Sampler sampler = make_sampler();
  std::vector<std::int64_t> counts(logits.size());
  for (std::int64_t position = 0; position < 200'000; ++position)
    ++counts[static_cast<std::size_t>(
        sampler.sample({.logits = logits, .position = position}, {}).value().token)];
  EXPECT_LT(chi_square(counts, expected.probability), chi_square_limit(2999));
}

// Pairs of draws from four equally likely tokens: all 16 combinations are equally likely.
template <class Pair>
double pair_chi_square(Pair pair) {
  const Logits equal(4, 0.0f);
  Sampler sampler = make_sampler();
  const auto draw = [&](std::uint64_t sequence, std::int64_t position, std::uint64_t seed) {
    const SamplingInput input{.logits = equal, .sequence_id = sequence, .position = position};
    return static_cast<std::size_t>(sampler.sample(input, {.seed = seed}).value().token);
  };
  std::vector<std::int64_t> counts(16);
  for (std::int64_t i = 0; i < 100'000; ++i) ++counts[pair(i, draw)];
  return chi_square(counts, std::vector<double>(16, 1.0 / 16));
}

TEST(SamplingDraw, PositionsSequencesAndSeedsAreIndependent) {
  const double limit = chi_square_limit(15);
  EXPECT_LT(pair_chi_square([](std::int64_t i, auto draw) {
              return draw(1, 2 * i, 5) * 4 + draw(1, 2 * i + 1, 5);
            }),
            limit);
  EXPECT_LT(pair_chi_square([](std::int64_t i, auto draw) {
              const auto sequence = static_cast<std::uint64_t>(i);
              return draw(2 * sequence, 7, 5) * 4 + draw(2 * sequence + 1, 7, 5);
            }),
            limit);
  EXPECT_LT(
      pair_chi_square([](std::int64_t i, auto draw) { return draw(1, i, 5) * 4 + draw(1, i, 6); }),
      limit);
  EXPECT_LT(pair_chi_square(
                [](std::int64_t i, auto draw) {  // the high word of the sequence id matters, too
                  return draw(1, i, 5) * 4 + draw(1 | std::uint64_t{1} << 40, i, 5);
                }),
            limit);
}

TEST(SamplingDraw, DoesNotDependOnEarlierCalls) {
  testing::Random random(5);
  Sampler busy = make_sampler(), fresh = make_sampler();
  const SamplingOptions o{.temperature = 0.9, .top_p = 0.95, .seed = 77};
  for (std::int64_t position = 0; position < 100; ++position) {
    Logits logits(500), other(static_cast<std::size_t>(random.between(1, 2000)));
    for (float& logit : logits) logit = static_cast<float>(random.normal() * 3);
    for (float& logit : other) logit = static_cast<float>(random.normal());
    (void)busy.sample({.logits = other, .sequence_id = 8, .position = position}, {.top_k = 3});
    const SamplingInput input{.logits = logits, .sequence_id = 2, .position = position};
    EXPECT_EQ(busy.sample(input, o).value().token, fresh.sample(input, o).value().token);
  }
}

TEST(SamplingDraw, IsTheSameOnEveryInstructionSet) {
  testing::Random random(6);
  Sampler scalar = make_sampler("cpu:scalar"), native = make_sampler();
  for (std::int64_t position = 0; position < 100; ++position) {
    Logits logits(static_cast<std::size_t>(random.between(1, 1500)));
    for (float& logit : logits) logit = static_cast<float>(random.normal() * 4);
    const SamplingInput input{.logits = logits, .position = position};
    const SamplingOptions o{
        .temperature = 1.3, .top_p = random.uniform() + 0.1 > 1 ? 1 : 0.9, .num_logprobs = 5};
    const Sample a = scalar.sample(input, o).value(), b = native.sample(input, o).value();
    ASSERT_EQ(a.token, b.token);
    ASSERT_EQ(a.logprob, b.logprob);
  }
}

TEST(SamplingDraw, UniformIsThatOfPhilox) {
  const PhiloxWords words = philox4x32<10>({{7, 0, 5, 6}}, 3, 4);
  const double expected =
      (static_cast<double>(words.word[0]) * 0x1p21 + static_cast<double>(words.word[1] >> 11)) *
      0x1p-53;
  EXPECT_EQ(uniform_at(std::uint64_t{4} << 32 | 3, std::uint64_t{6} << 32 | 5, 7,
                       UniformPurpose::sampling),
            expected);
}

TEST(SamplingDraw, GreedyTakesTheLowestIdOfTheLargest) {
  Sampler sampler = make_sampler();
  const SamplingOptions greedy{.temperature = 0, .top_k = 1, .top_p = 0.1};
  for (const std::size_t size : {1, 5, 64, 65, 200, 1001}) {
    for (std::size_t i = 0; i < size; ++i) {
      Logits logits(size, -kInf);
      logits[i] = -3.0f;
      logits.back() = -3.0f;
      EXPECT_EQ(sampler.sample({.logits = logits}, greedy).value().token, i);
    }
  }
  Logits largest(300, 0.0f);
  largest[200] = std::numeric_limits<float>::max();
  EXPECT_EQ(sampler.sample({.logits = largest}, greedy).value().token, 200);
  EXPECT_EQ(sampler.sample({.logits = largest}, {}).value().token, 200);
}

// ---- errors ----

void expect_error(const std::optional<Failure>& failure, const std::string& text,
                  ErrorCode code = ErrorCode::invalid_argument) {
  ASSERT_TRUE(failure) << text;
  EXPECT_EQ(failure->code, code);
  EXPECT_NE(failure->message.find(text), std::string::npos) << failure->message;
}

TEST(SamplingErrors, LogitsAndHistory) {
  testing::GoldenTexts texts("ops.txt");
  Sampler sampler = make_sampler();
  const auto failure = [&](const Logits& logits, const SamplingOptions& o,
                           const std::vector<std::int32_t>& output) -> std::optional<Failure> {
    auto result = sampler.sample({.logits = logits, .prompt = {}, .output = output}, o);
    if (result.ok()) return {};
    if (logits.size() < 3)
      texts.add(static_cast<int>(result.failure().code), result.failure().message);
    return result.failure();
  };
  for (const std::size_t size : {1, 8, 64, 77, 130}) {
    for (std::size_t i = 0; i < size; ++i) {
      for (const double temperature : {0.0, 1.0}) {
        Logits logits(size, 1.0f);
        logits[i] = kNan;
        const SamplingOptions o{.temperature = temperature};
        const std::string name = "logits[" + std::to_string(i) + "]=";
        expect_error(failure(logits, o, {}), name + "nan", ErrorCode::io_error);
        logits[i] = kInf;
        expect_error(failure(logits, o, {}), name + "inf", ErrorCode::io_error);
        // The error blames the model even if options change the logits.
        SamplingOptions all = o;
        all.repetition_penalty = 2;
        expect_error(failure(logits, all, {0}), name + "inf", ErrorCode::io_error);
      }
    }
    expect_error(failure(Logits(size, -kInf), {}, {}), "are -infinity");
    expect_error(failure(Logits(size, -kInf), {.temperature = 0}, {}), "are -infinity");
  }
  const float huge = std::numeric_limits<float>::max();
  expect_error(failure({0.0f, huge}, {.repetition_penalty = 0.001}, {1}),
               "logits[1]=inf after biases and penalties, 3.40282e+38 before");
  expect_error(failure({}, {}, {}), "logits: empty");
  expect_error(failure({1.0f}, {.logit_bias = {{0, -kInf}}}, {}), "are -infinity");
  expect_error(failure({1.0f}, {.logit_bias = {{1, 1.0f}}}, {}),
               "logit_bias: token 1 must be 0 to 0");
  expect_error(failure({1.0f}, {.repetition_penalty = 2}, {0, 1}), "output[1]=1");
  expect_error(failure({1.0f}, {.frequency_penalty = 2}, {-1}), "output[0]=-1");
}

TEST(SamplingErrors, DevicesWithoutKernelsAreRejected) {
  const Result<Sampler> sampler = Sampler::make(device_from_text("sm90:132").value());
  ASSERT_FALSE(sampler.ok());
  expect_error(sampler.failure(), "sampling on [cuda sm90, 132 multiprocessors",
               ErrorCode::unsupported);
  expect_error(sampler.failure(), "must be a CPU; copy the logits to the host",
               ErrorCode::unsupported);
}

TEST(SamplingErrors, OptionsSayWhatArrivedAndWhatToDo) {
  testing::GoldenTexts texts("ops.txt");
  const double nan = std::nan("");
  const struct {
    const char* text;
    std::function<void(SamplingOptions&)> change;
  } cases[] = {
      {"temperature=-1", [](SamplingOptions& o) { o.temperature = -1; }},
      {"temperature=1e-09", [](SamplingOptions& o) { o.temperature = 1e-9; }},
      {"temperature=nan", [=](SamplingOptions& o) { o.temperature = nan; }},
      {"temperature=inf", [](SamplingOptions& o) { o.temperature = HUGE_VAL; }},
      {"top_k=-1", [](SamplingOptions& o) { o.top_k = -1; }},
      {"top_p=0", [](SamplingOptions& o) { o.top_p = 0; }},
      {"top_p=1.5", [](SamplingOptions& o) { o.top_p = 1.5; }},
      {"top_p=nan", [=](SamplingOptions& o) { o.top_p = nan; }},
      {"min_p=-0.1", [](SamplingOptions& o) { o.min_p = -0.1; }},
      {"min_p=2", [](SamplingOptions& o) { o.min_p = 2; }},
      {"repetition_penalty=0", [](SamplingOptions& o) { o.repetition_penalty = 0; }},
      {"repetition_penalty=nan", [=](SamplingOptions& o) { o.repetition_penalty = nan; }},
      {"repetition_window=-1", [](SamplingOptions& o) { o.repetition_window = -1; }},
      {"presence_penalty=inf", [](SamplingOptions& o) { o.presence_penalty = HUGE_VAL; }},
      {"frequency_penalty=nan", [=](SamplingOptions& o) { o.frequency_penalty = nan; }},
      {"logit_bias[1].token=10",
       [](SamplingOptions& o) {
         o.logit_bias = {{9, 0}, {10, 0}};
       }},
      {"logit_bias[0].token=-1",
       [](SamplingOptions& o) {
         o.logit_bias = {{-1, 0}};
       }},
      {"logit_bias[0].value=inf",
       [](SamplingOptions& o) {
         o.logit_bias = {{0, kInf}};
       }},
      {"logit_bias[0].value=nan",
       [](SamplingOptions& o) {
         o.logit_bias = {{0, kNan}};
       }},
      {"num_logprobs=-1", [](SamplingOptions& o) { o.num_logprobs = -1; }},
      {"num_logprobs=2000", [](SamplingOptions& o) { o.num_logprobs = 2000; }},
  };
  EXPECT_FALSE(check_sampling_options({}, 10));
  EXPECT_FALSE(check_sampling_options({.temperature = 0, .logit_bias = {{9, -kInf}}}, 10));
  for (const auto& test_case : cases) {
    SamplingOptions options;
    test_case.change(options);
    const auto failure = check_sampling_options(options, 10);
    expect_error(failure, test_case.text);
    texts.add(failure->message);
    expect_error(failure, ": must ");  // the rule
    expect_error(failure, "; ");       // the remedy
  }
}

}  // namespace
}  // namespace headrace
