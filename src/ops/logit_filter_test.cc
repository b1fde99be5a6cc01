// What filters keep, against filters that sort all tokens and add weights as integers.
#include "ops/logit_filter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "backends/cpu/sampling/sampling.h"
#include "base/math.h"
#include "tests/support/random.h"

namespace headrace {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
using Logits = std::vector<float>;

std::vector<float> weights_of(const Logits& logits, double temperature) {
  std::vector<float> weights(logits.size());
  std::vector<double> block_sums(logits.size() / kWeightBlock + 1);
  cpu::exp_weights({.logits = logits.data(),
                    .num_logits = std::ssize(logits),
                    .max = *std::ranges::max_element(logits),
                    .temperature = static_cast<float>(temperature),
                    .weights = weights.data(),
                    .block_sums = block_sums.data()},
                   cpu_info().value());
  return weights;
}

// In units of 2^-34, ties to even.
std::int64_t units_of(float weight) { return std::llrint(static_cast<double>(weight) * 0x1p34); }

// Tokens above -infinity, the most likely first.
class SlowFilter {
 public:
  explicit SlowFilter(const Logits& logits) : logits_(logits) {
    for (std::size_t i = 0; i < logits.size(); ++i)
      if (logits[i] > -kInfinity) kept_.push_back(static_cast<std::int32_t>(i));
    std::ranges::stable_sort(kept_, [&](auto a, auto b) { return at(a) > at(b); });
  }
  void keep_top_k(std::int64_t k, bool with_ties) {
    if (k == 0 || k >= std::ssize(kept_)) return;
    auto last = static_cast<std::size_t>(k);
    while (with_ties && last < kept_.size() && at(kept_[last]) == at(kept_[last - 1])) ++last;
    kept_.resize(last);
  }
  void keep_top_p(double top_p, double temperature) {
    if (top_p >= 1) return;
    const std::vector<float> weights = weights_of(logits_, temperature);
    const auto units = [&](std::int32_t i) {
      return units_of(weights[static_cast<std::size_t>(i)]);
    };
    std::int64_t total = 0, reached = 0;
    for (const std::int32_t token : kept_) total += units(token);
    std::size_t count = 0;
    while (static_cast<double>(reached) < top_p * static_cast<double>(total))
      reached += units(kept_[count++]);
    kept_.resize(count);
  }
  void keep_min_p(double min_p, double temperature) {
    if (min_p == 0) return;
    const double least = static_cast<double>(at(kept_[0])) + temperature * std::log(min_p);
    std::erase_if(kept_, [&](auto i) { return static_cast<double>(at(i)) < least; });
  }
  std::vector<std::int32_t> tokens() const {  // ascending
    std::vector<std::int32_t> tokens = kept_;
    std::ranges::sort(tokens);
    return tokens;
  }

 private:
  float at(std::int32_t token) const { return logits_[static_cast<std::size_t>(token)]; }
  const Logits& logits_;
  std::vector<std::int32_t> kept_;
};

void apply(SlowFilter& filter, const SamplingOptions& o) {
  const double temperature = o.order == SamplingOrder::llama_cpp ? 1 : o.temperature;
  if (o.order == SamplingOrder::vllm) filter.keep_min_p(o.min_p, temperature);
  filter.keep_top_k(o.top_k, o.order != SamplingOrder::llama_cpp);
  filter.keep_top_p(o.top_p, temperature);
  if (o.order != SamplingOrder::vllm) filter.keep_min_p(o.min_p, temperature);
}

Logits row_of(int kind, testing::Random& random) {
  Logits row(static_cast<std::size_t>(random.between(1, 5000)));
  for (float& logit : row) {
    const double normal = random.normal();
    switch (kind) {
      case 0:
        logit = static_cast<float>(4 * normal);
        break;
      case 1:
        logit = static_cast<float>(0.01 * normal);
        break;
      case 2:
        logit = static_cast<float>(std::round(2 * normal));  // ties, zeros of both signs
        break;
      case 3:
      case 4:
        logit = random.between(0, 20) == 0 ? static_cast<float>(std::round(normal)) : -kInfinity;
        break;
    }
  }
  if (kind >= 3) row[row.size() / 2] = 1;
  if (kind == 4) {  // a mask: one of ten blocks has logits, also the least one
    for (std::size_t i = 0; i < row.size(); ++i)
      if (i / kLogitBlock % 10 != row.size() / 2 / kLogitBlock % 10) row[i] = -kInfinity;
    row[row.size() / 2 / kLogitBlock * kLogitBlock] = std::numeric_limits<float>::lowest();
    row[row.size() / 2] = 1;
  }
  return row;
}

TEST(LogitFilter, KeepsWhatSlowFiltersKeep) {
  LogitFilter filter(cpu_info().value());
  testing::Random random(7);
  for (int i = 0; i < 3000; ++i) {
    const Logits row = row_of(i % 5, random);
    const auto pick = [&](std::initializer_list<double> values) {
      return values.begin()[random.between(0, std::ssize(values) - 1)];
    };
    const SamplingOptions o{.temperature = pick({0.3, 1, 3}),
                            .top_k = static_cast<std::int64_t>(pick({0, 0, 1, 20, 78, 1000})),
                            .top_p = pick({1, 0.999, 0.95, 0.5, 0.05}),
                            .min_p = pick({0, 0, 0.01, 0.5}),
                            .order = static_cast<SamplingOrder>(random.between(0, 2))};
    SlowFilter slow(row);
    apply(slow, o);
    ASSERT_TRUE(filter.begin(row));
    filter.apply(o);
    const Distribution kept = filter.distribution(o.temperature);
    std::vector<std::int32_t> tokens;
    for (const std::int32_t token : kept.tokens)
      if (row[static_cast<std::size_t>(token)] > -kInfinity) tokens.push_back(token);
    ASSERT_EQ(tokens, slow.tokens()) << i;
    // The sum and the draw.
    const std::vector<float> weights = weights_of(row, o.temperature);
    std::int64_t total = 0, reached = 0;
    for (const auto token : tokens) total += units_of(weights[static_cast<std::size_t>(token)]);
    ASSERT_EQ(kept.sum, static_cast<double>(total) * 0x1p-34);
    const double u = static_cast<double>(random.between(0, 999)) / 1000;
    std::size_t drawn = 0;
    while ((reached += units_of(weights[static_cast<std::size_t>(tokens[drawn])])) <=
           static_cast<std::int64_t>(std::floor(u * static_cast<double>(total))))
      ++drawn;
    ASSERT_EQ(kept.tokens[filter.pick(u)], tokens[drawn]) << i;
  }
}

TEST(LogitFilter, FindsTheLargest) {
  LogitFilter filter(cpu_info().value());
  testing::Random random(9);
  for (int i = 0; i < 200; ++i) {
    const Logits row = row_of(i % 5, random);
    std::vector<Candidate> sorted;
    for (std::size_t k = 0; k < row.size(); ++k)
      if (row[k] > -kInfinity) sorted.push_back({row[k], static_cast<std::int32_t>(k)});
    std::ranges::stable_sort(sorted, std::ranges::greater(), &Candidate::logit);
    ASSERT_TRUE(filter.begin(row));
    for (const std::int64_t count : {1, 5, 20, 78, 79, 80, 500, 6000}) {
      const auto largest = filter.largest(count);
      ASSERT_EQ(std::ssize(largest), std::min(count, std::ssize(sorted))) << i;
      for (std::size_t k = 0; k < largest.size(); ++k) {
        ASSERT_EQ(largest[k].token, sorted[k].token) << i;
        ASSERT_EQ(largest[k].logit, sorted[k].logit) << i;
      }
      std::vector<float> scratch(row.size());
      const float least = count <= std::ssize(sorted)
                              ? sorted[static_cast<std::size_t>(count - 1)].logit
                              : -kInfinity;
      ASSERT_EQ(kth_largest(row, count, scratch), least);
    }
  }
}

// Doubles add up to 2^19 weights without rounding.
TEST(LogitFilter, SumsOfWeightsDoNotDependOnTheOrder) {
  LogitFilter filter(cpu_info().value());
  testing::Random random(10);
  Logits row(std::size_t{1} << 19);
  for (float& logit : row) logit = static_cast<float>(random.normal());
  ASSERT_TRUE(filter.begin(row));
  const double sum = filter.distribution(1).sum;
  std::ranges::sort(row);
  ASSERT_TRUE(filter.begin(row));
  EXPECT_EQ(filter.distribution(1).sum, sum);
}

}  // namespace
}  // namespace headrace
