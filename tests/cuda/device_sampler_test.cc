// Tokens that are drawn on a GPU: those of the host's sampler, for every kind of row and option.
#include "ops/device_sampler.h"

#include <cmath>
#include <limits>

#include "backends/cuda/backend.h"
#include "cuda/gpu.h"
#include "support/random.h"

namespace headrace::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

enum class Kind { normal, sharp, flat, equal, mostly_forbidden, one };
constexpr Kind kKinds[] = {Kind::normal,           Kind::sharp, Kind::flat, Kind::equal,
                           Kind::mostly_forbidden, Kind::one};

std::vector<float> row_of(Kind kind, std::int64_t vocab_size, Random& random) {
  std::vector<float> row(static_cast<std::size_t>(vocab_size));
  for (float& x : row) {
    const double normal = random.normal();
    switch (kind) {
      case Kind::normal:
        x = static_cast<float>(2 * normal);
        break;
      case Kind::sharp:
        x = static_cast<float>(30 * normal);
        break;
      case Kind::flat:
        x = static_cast<float>(0.01 * normal);
        break;
      case Kind::equal:
        x = static_cast<float>(std::floor(normal));  // many ties
        break;
      case Kind::mostly_forbidden:
        x = random.between(0, 99) == 0 ? static_cast<float>(normal) : -kInfinity;
        break;
      case Kind::one:
        x = -kInfinity;
        break;
    }
  }
  if (kind == Kind::one) row[static_cast<std::size_t>(random.between(0, vocab_size - 1))] = 3;
  return row;
}

SamplingOptions options_of(Random& random) {
  const auto pick = [&](std::initializer_list<double> values) {
    return values.begin()[random.between(0, static_cast<std::int64_t>(values.size()) - 1)];
  };
  return {.temperature = pick({0, 0.3, 0.7, 1, 2.5}),
          .top_k = static_cast<std::int64_t>(pick({0, 0, 1, 7, 50, 3000})),
          .top_p = pick({1, 1, 0.999, 0.9, 0.4, 0.01}),
          .min_p = pick({0, 0, 0.001, 0.1, 0.9}),
          .seed = static_cast<std::uint64_t>(random.between(0, INT64_MAX)),
          .order = static_cast<SamplingOrder>(random.between(0, 2))};
}

class DeviceSamplerOnGpu : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { HEADRACE_NEEDS_GPU(80); }
};
// Below, at and beyond blocks of 64 and 256; a model's.
INSTANTIATE_TEST_SUITE_P(Vocabularies, DeviceSamplerOnGpu,
                         ::testing::Values(1, 63, 64, 65, 255, 256, 257, 1000, 49152, 128256));

TEST_P(DeviceSamplerOnGpu, DrawsTheTokensOfTheHost) {
  const std::int64_t vocab_size = GetParam();
  constexpr std::int64_t kRows = 12, kDraws = 100;
  const auto device = std::move(cuda::make_device(0).value());
  const DeviceInfo host = cpu_info().value();
  // Fewer than are drawn at once.
  auto on_device = std::move(DeviceSampler::make(*device, host, 64, vocab_size, nullptr).value());
  Sampler on_host = std::move(Sampler::make(host).value());
  Random random(static_cast<std::uint64_t>(vocab_size));
  std::int64_t num_drawn = 0, num_left = 0;
  for (int round = 0; round < 4; ++round) {
    std::vector<float> rows;
    for (std::int64_t i = 0; i < kRows; ++i) {
      const auto row = row_of(kKinds[i % std::size(kKinds)], vocab_size, random);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    const OnDevice<float> logits(rows);
    std::vector<SamplingOptions> options;
    for (std::int64_t i = 0; i < kDraws; ++i) options.push_back(options_of(random));
    std::vector<DeviceSampler::Draw> draws;
    for (std::int64_t i = 0; i < kDraws; ++i)
      draws.push_back({.row = random.between(0, kRows - 1),
                       .options = &options[static_cast<std::size_t>(i)],
                       .sequence_id = static_cast<std::uint64_t>(i),
                       .position = 3 + i});
    ASSERT_FALSE(on_device.draw(logits.data(), draws));
    for (const auto& draw : draws) {
      const std::span row(rows.data() + draw.row * vocab_size,
                          static_cast<std::size_t>(vocab_size));
      const auto expected = on_host.sample(
          {.logits = row, .sequence_id = draw.sequence_id, .position = draw.position},
          *draw.options);
      if (!expected.ok()) EXPECT_FALSE(draw.token);  // every token is forbidden
      ++num_drawn;
      num_left += !draw.token;
      if (draw.token && expected.ok())
        ASSERT_EQ(*draw.token, expected.value().token)
            << "row " << draw.row << " temperature " << draw.options->temperature << " top_k "
            << draw.options->top_k << " top_p " << draw.options->top_p << " min_p "
            << draw.options->min_p << " order " << static_cast<int>(draw.options->order);
    }
  }
  // Rows without a token that may be drawn, flat rows of a large vocabulary.
  EXPECT_LT(num_left, num_drawn / 2);
}

TEST_P(DeviceSamplerOnGpu, LeavesBadRowsToTheHost) {
  const std::int64_t vocab_size = GetParam();
  const auto device = std::move(cuda::make_device(0).value());
  auto sampler =
      std::move(DeviceSampler::make(*device, cpu_info().value(), 8, vocab_size, nullptr).value());
  for (const float bad : {std::nanf(""), kInfinity}) {
    std::vector<float> rows(static_cast<std::size_t>(2 * vocab_size), 1.0f);
    rows[static_cast<std::size_t>(vocab_size / 2)] = bad;
    const OnDevice<float> logits(rows);
    for (const double temperature : {0.0, 1.0}) {
      const SamplingOptions options{.temperature = temperature};
      std::vector<DeviceSampler::Draw> draws = {
          {.row = 0, .options = &options, .sequence_id = 0, .position = 1},
          {.row = 1, .options = &options, .sequence_id = 0, .position = 1}};
      ASSERT_FALSE(sampler.draw(logits.data(), draws));
      EXPECT_FALSE(draws[0].token);
      EXPECT_TRUE(draws[1].token);
    }
  }
}

TEST(DeviceSamplerOnGpuLimits, RefusesMoreDrawsThanAGridHasRows) {
  HEADRACE_NEEDS_GPU(80);
  const auto device = std::move(cuda::make_device(0).value());
  const auto made = DeviceSampler::make(*device, cpu_info().value(), 32768, 64, nullptr);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.failure().code, ErrorCode::unsupported);
}

// In two calls: the tokens stay on the device, and errors are those of the host.
TEST_P(DeviceSamplerOnGpu, DrawsAlone) {
  const std::int64_t vocab_size = GetParam();
  const auto device = std::move(cuda::make_device(0).value());
  const DeviceInfo host = cpu_info().value();
  auto sampler = std::move(DeviceSampler::make(*device, host, 8, vocab_size, nullptr).value());
  Sampler on_host = std::move(Sampler::make(host).value());
  Random random(static_cast<std::uint64_t>(vocab_size));
  std::vector<float> rows;
  for (std::int64_t i = 0; i < 6; ++i) {
    auto row = row_of(i < 3 ? kKinds[i] : Kind::normal, vocab_size, random);
    if (i == 3) std::ranges::fill(row, -kInfinity);
    if (i > 3) row[static_cast<std::size_t>(vocab_size * 2 / 3)] = i == 4 ? kInfinity : NAN;
    rows.insert(rows.end(), row.begin(), row.end());
  }
  const OnDevice<float> logits(rows);
  for (const double temperature : {0.0, 0.4, 1.0, 3.0})
    for (std::int64_t position = 0; position < 60; ++position) {
      SamplingOptions options{.temperature = temperature, .seed = 7};
      if (position % 3 != 0) options.num_logprobs = 0;
      if (position % 3 == 2) options.logprobs_mode = LogprobsMode::processed;
      ASSERT_TRUE(DeviceSampler::takes(options));
      ASSERT_TRUE(sampler.draws_alone(options));
      std::vector<DeviceSampler::Draw> draws;
      for (std::int64_t row = 5; row >= 0; --row)
        draws.push_back({.row = row, .options = &options, .sequence_id = 3, .position = position});
      ASSERT_FALSE(sampler.begin(logits.data(), draws));
      ASSERT_FALSE(sampler.end(draws));
      std::vector<std::int32_t> tokens(draws.size());
      ASSERT_FALSE(device->download(sampler.tokens_on_device(), tokens.data(),
                                    tokens.size() * sizeof tokens[0], nullptr));
      for (std::size_t i = 0; i < draws.size(); ++i) {
        const std::span row(rows.data() + draws[i].row * vocab_size,
                            static_cast<std::size_t>(vocab_size));
        const auto expected =
            on_host.sample({.logits = row, .sequence_id = 3, .position = position}, options);
        ASSERT_EQ(draws[i].token.has_value(), expected.ok()) << "row " << draws[i].row;
        if (expected.ok()) {
          ASSERT_EQ(*draws[i].token, expected.value().token) << "row " << draws[i].row;
          EXPECT_EQ(draws[i].logprob, expected.value().logprob) << "row " << draws[i].row;
        } else {
          EXPECT_EQ(draws[i].failure->message, expected.failure().message);
          EXPECT_EQ(draws[i].failure->code, expected.failure().code);
        }
        EXPECT_EQ(tokens[i], draws[i].token.value_or(0));
      }
    }
}

}  // namespace
}  // namespace headrace::testing
