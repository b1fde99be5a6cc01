// The filters on what a device has picked out of logits keep what they keep of all logits.
#include "ops/logit_filter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "backends/cpu/sampling/sampling.h"
#include "base/math.h"
#include "tests/support/random.h"

namespace headrace {
namespace {

constexpr std::int64_t kVocabSize = 5000;

// As a device summarises a row.
struct Row {
  std::vector<float> logits;
  std::vector<float> maxima = std::vector<float>(ceil_div(kVocabSize, kLogitBlock));
  std::vector<double> block_sums = std::vector<double>(ceil_div(kVocabSize, kWeightBlock));
  double sum = 0;

  LogitSummary summarise(double temperature, const DeviceInfo& host) {
    EXPECT_TRUE(cpu::block_maxima({logits.data(), kVocabSize, maxima.data()}, host));
    const float max = *std::ranges::max_element(maxima);
    std::vector<float> weights(logits.size());
    sum = cpu::exp_weights({.logits = logits.data(),
                            .num_logits = kVocabSize,
                            .max = max,
                            .temperature = static_cast<float>(temperature),
                            .weights = weights.data(),
                            .block_sums = block_sums.data()},
                           host);
    return {.num_logits = kVocabSize, .max = max, .maxima = maxima};
  }
  std::vector<Candidate> at_least(float bound) const {
    std::vector<Candidate> found;
    for (std::size_t i = 0; i < logits.size(); ++i)
      if (logits[i] >= bound && !std::isinf(logits[i]))
        found.push_back({logits[i], static_cast<std::int32_t>(i)});
    return found;
  }
};

TEST(LogitFilter, KeepsTheSameOfWhatItNeedsAsOfAll) {
  const DeviceInfo host = cpu_info().value();
  LogitFilter of_all(host), of_needed(host);
  testing::Random random(7);
  int num_kept_all = 0;
  for (int i = 0; i < 3000; ++i) {
    const double scale = i % 3 == 0 ? 0.5 : 4;
    Row row{.logits = std::vector<float>(kVocabSize)};
    for (float& logit : row.logits) {
      const double x = scale * random.normal();
      logit = static_cast<float>(i % 5 == 0 ? std::round(x) : x);  // with ties
    }
    const auto pick = [&](std::initializer_list<double> values) {
      return values.begin()[random.between(0, std::ssize(values) - 1)];
    };
    SamplingOptions o{.temperature = pick({0.3, 1, 3}),
                      .top_k = static_cast<std::int64_t>(pick({0, 0, 1, 20, 78, 1000})),
                      .top_p = pick({1, 0.95, 0.5, 0.05}),
                      .min_p = pick({0, 0, 0.01, 0.5}),
                      .order = static_cast<SamplingOrder>(random.between(0, 2))};
    if (o.top_k == 0 && o.top_p == 1 && o.min_p == 0) o.top_k = 3;
    const LogitSummary summary =
        row.summarise(o.order == SamplingOrder::llama_cpp ? 1 : o.temperature, host);
    const auto known = row.at_least(of_needed.needed(o, summary, row.sum));
    of_needed.begin(summary, row.sum, known);
    of_needed.apply(o);
    ASSERT_TRUE(of_all.begin(row.logits));
    of_all.apply(o);
    ASSERT_EQ(of_needed.keeps_all(), of_all.keeps_all());
    num_kept_all += of_all.keeps_all();
    if (of_all.keeps_all()) continue;
    const Distribution a = of_all.distribution(o.temperature),
                       b = of_needed.distribution(o.temperature);
    ASSERT_TRUE(std::ranges::equal(a.tokens, b.tokens)) << i;
    ASSERT_TRUE(std::ranges::equal(a.weights, b.weights)) << i;
    ASSERT_EQ(a.sum, b.sum);
    const double u = static_cast<double>(random.between(0, 999)) / 1000;
    ASSERT_EQ(a.tokens[of_all.pick(u)], b.tokens[of_needed.pick(u)]);
  }
  EXPECT_LT(num_kept_all, 10);
}

// Most tokens forbidden, many ties.
Row row_of_few(testing::Random& random) {
  Row row{.logits = std::vector<float>(kVocabSize, -std::numeric_limits<float>::infinity())};
  const std::int64_t count = random.between(1, 300);
  for (std::int64_t i = 0; i < count; ++i)
    row.logits[static_cast<std::size_t>(random.between(0, kVocabSize - 1))] =
        static_cast<float>(std::round(3 * random.normal()));
  return row;
}

TEST(LogitFilter, FindsTheLargestInWhatItNeedsForThem) {
  const DeviceInfo host = cpu_info().value();
  LogitFilter of_all(host), of_needed(host);
  testing::Random random(9);
  for (int i = 0; i < 500; ++i) {
    Row row = row_of_few(random);
    if (i % 2 == 0)
      for (float& logit : row.logits) logit = static_cast<float>(4 * random.normal());
    const LogitSummary summary = row.summarise(1, host);
    for (const std::int64_t count : {1, 5, 20, 78, 79, 80, 500, 6000}) {
      const auto known = row.at_least(of_needed.least_of_largest(count, summary));
      if (i % 2 == 0 && count < 70) {
        EXPECT_LT(std::ssize(known), 10 * count);
      }
      of_needed.begin(summary, 0, known);
      ASSERT_TRUE(of_all.begin(row.logits));
      const auto a = of_all.largest(count), b = of_needed.largest(count);
      ASSERT_TRUE(std::ranges::equal(a, b,
                                     [](const Candidate& x, const Candidate& y) {
                                       return x.token == y.token && x.logit == y.logit;
                                     }))
          << i << " count " << count;
    }
  }
}

// Then tokens are drawn from all.
TEST(LogitFilter, KeepsAllWhereFewerThanTopKAreAllowed) {
  const DeviceInfo host = cpu_info().value();
  LogitFilter of_all(host), of_needed(host);
  testing::Random random(10);
  for (int i = 0; i < 200; ++i) {
    Row row = row_of_few(random);
    for (const SamplingOrder order :
         {SamplingOrder::vllm, SamplingOrder::transformers, SamplingOrder::llama_cpp}) {
      const SamplingOptions o{.top_k = 301, .order = order};
      const LogitSummary summary = row.summarise(1, host);
      const float needed = of_needed.needed(o, summary, row.sum);
      EXPECT_EQ(needed, -std::numeric_limits<float>::infinity());
      const auto known = row.at_least(needed);
      of_needed.begin(summary, row.sum, known);
      of_needed.apply(o);
      ASSERT_TRUE(of_all.begin(row.logits));
      of_all.apply(o);
      EXPECT_TRUE(of_all.keeps_all());
      EXPECT_TRUE(of_needed.keeps_all());
    }
  }
}

}  // namespace
}  // namespace headrace
