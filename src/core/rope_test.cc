#include "core/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <string>

namespace headrace {
namespace {

RopeOptions options_of(std::int64_t rot_dim) {
  RopeOptions options;
  options.rot_dim = rot_dim;
  return options;
}

struct Angles {
  Angles(const RopeOptions& options, const std::vector<std::int32_t>& positions)
      : cos(positions.size() * static_cast<std::size_t>(options.rot_dim / 2)), sin(cos.size()) {
    rope_angles(rope_frequencies(options).value(), positions, cos.data(), sin.data());
  }
  std::vector<float> cos, sin;
};

TEST(Rope, AnglesAreRoundedCosinesAndSinesOfEveryPosition) {
  auto options = options_of(64);
  options.base = 100000;
  const std::vector<std::int32_t> positions = {0, 1, 17, 8191, 4096};
  const Angles angles(options, positions);
  for (std::size_t row = 0; row < positions.size(); ++row) {
    for (std::size_t i = 0; i < 32; ++i) {
      const double angle = positions[row] * std::pow(100000.0, -static_cast<double>(i) / 32);
      // At an angle of 8191 the error in double is 1e-12, far below a float ulp.
      EXPECT_NEAR(angles.cos[row * 32 + i], std::cos(angle), 0x1p-24);
      EXPECT_NEAR(angles.sin[row * 32 + i], std::sin(angle), 0x1p-24);
    }
  }
}

TEST(Rope, LinearScalingDividesPositions) {
  auto options = options_of(8);
  const Angles plain(options, {1, 2});
  options.linear_factor = 4;
  const Angles scaled(options, {4, 8});
  EXPECT_EQ(scaled.cos, plain.cos);
  EXPECT_EQ(scaled.sin, plain.sin);
}

TEST(Rope, Llama3ScalingByWavelength) {
  auto options = options_of(128);
  options.base = 500000;
  const auto plain = rope_frequencies(options).value();
  options.llama3 = RopeLlama3Scaling{8, 1, 4, 8192};
  const auto scaled = rope_frequencies(options).value();
  int num_kept = 0, num_stretched = 0, num_mixed = 0;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const double wavelength = 2 * std::numbers::pi / plain[i];
    if (wavelength < 8192.0 / 4) {
      EXPECT_EQ(scaled[i], plain[i]);
      ++num_kept;
    } else if (wavelength > 8192.0) {
      EXPECT_EQ(scaled[i], plain[i] / 8);
      ++num_stretched;
    } else {
      const double smooth = (8192 / wavelength - 1) / (4 - 1);
      EXPECT_NEAR(scaled[i], (1 - smooth) * plain[i] / 8 + smooth * plain[i], 1e-15 * plain[i]);
      ++num_mixed;
    }
  }
  EXPECT_EQ(num_kept, 29);
  EXPECT_EQ(num_mixed, 6);
  EXPECT_EQ(num_stretched, 29);
}

TEST(Rope, ExplicitFactorsDivideFrequencies) {
  auto options = options_of(6);
  const auto plain = rope_frequencies(options).value();
  const float factors[] = {1.0f, 2.0f, 8.0f};
  options.freq_factors = factors;
  const auto scaled = rope_frequencies(options).value();
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_EQ(scaled[i], plain[i] / static_cast<double>(factors[i]));
}

TEST(Rope, ErrorsNameTheValueTheRuleAndTheRemedy) {
  const float short_factors[] = {1.0f};
  const float bad_factors[] = {1.0f, std::numeric_limits<float>::quiet_NaN()};
  const struct {
    const char* text;
    std::function<void(RopeOptions&)> change;
  } cases[] = {
      {"rot_dim=3", [](RopeOptions& o) { o.rot_dim = 3; }},
      {"rot_dim=0", [](RopeOptions& o) { o.rot_dim = 0; }},
      {"base=0", [](RopeOptions& o) { o.base = 0; }},
      {"base=nan", [](RopeOptions& o) { o.base = std::nan(""); }},
      {"factor=-1", [](RopeOptions& o) { o.linear_factor = -1; }},
      {"factor=0",
       [](RopeOptions& o) {
         o.llama3 = RopeLlama3Scaling{0, 1, 4, 8192};
       }},
      {"low_freq_factor=4",
       [](RopeOptions& o) {
         o.llama3 = RopeLlama3Scaling{8, 4, 4, 8192};
       }},
      {"original_context_length=0",
       [](RopeOptions& o) {
         o.llama3 = RopeLlama3Scaling{8, 1, 4, 0};
       }},
      {"freq_factors has 1", [&](RopeOptions& o) { o.freq_factors = short_factors; }},
      {"freq_factors[1]=nan", [&](RopeOptions& o) { o.freq_factors = bad_factors; }},
      {"both given",
       [&](RopeOptions& o) {
         o.freq_factors = bad_factors;
         o.llama3 = RopeLlama3Scaling{};
       }},
  };
  for (const auto& test_case : cases) {
    auto options = options_of(4);
    test_case.change(options);
    auto result = rope_frequencies(options);
    ASSERT_FALSE(result.ok()) << test_case.text;
    EXPECT_EQ(result.failure().code, ErrorCode::invalid_argument);
    for (const char* part : {test_case.text, "must be ", "; "})  // what arrived, rule, remedy
      EXPECT_NE(result.failure().message.find(part), std::string::npos) << result.failure().message;
  }
}

}  // namespace
}  // namespace headrace
