// Frequencies of every scaling against the formulas of the papers, as transformers 4 and 5 compute
// them (modeling_rope_utils.py), in double.
#include "ops/rope_options.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "tests/support/golden_texts.h"

namespace headrace {
namespace {

using Doubles = std::vector<double>;

struct Rope {
  Doubles frequencies;
  double attention_factor = 0;
};

Rope rope_of(const headrace_rope_options& options) {
  Rope rope{Doubles(static_cast<std::size_t>(options.rot_dim / 2)), 0};
  const Status bad =
      fill_rope(options, options.rot_dim, rope.frequencies.data(), &rope.attention_factor);
  EXPECT_FALSE(bad) << bad->message;
  return rope;
}

// 1 / base^(2i / dim).
Doubles plain(double base, double dim) {
  Doubles all;
  for (double i = 0; i < dim; i += 2) all.push_back(1 / std::pow(base, i / dim));
  return all;
}

double get_mscale(double scale, double mscale) {
  return scale <= 1 ? 1.0 : 0.1 * mscale * std::log(scale) + 1.0;
}

Doubles yarn(const headrace_rope_options& o) {
  const auto dim = static_cast<double>(o.rot_dim);
  const auto correction_dim = [&](double num_rotations) {
    return dim *
           std::log(static_cast<double>(o.original_context_length) /
                    (num_rotations * 2 * std::numbers::pi)) /
           (2 * std::log(o.base));
  };
  double low = correction_dim(o.beta_fast), high = correction_dim(o.beta_slow);
  if (o.truncate != 0) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::fmax(low, 0);
  high = std::fmin(high, dim - 1);
  if (low == high) high += 0.001;
  Doubles all = plain(o.base, dim);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double ramp = std::fmin(std::fmax((static_cast<double>(i) - low) / (high - low), 0), 1);
    const double extrapolation = 1 - ramp;
    all[i] = all[i] / o.factor * (1 - extrapolation) + all[i] * extrapolation;
  }
  return all;
}

Doubles llama3(const headrace_rope_options& o) {
  const auto original = static_cast<double>(o.original_context_length);
  Doubles all = plain(o.base, static_cast<double>(o.rot_dim));
  for (double& frequency : all) {
    const double wavelength = 2 * std::numbers::pi / frequency;
    if (wavelength < original / o.high_freq_factor) continue;
    const double smooth =
        (original / wavelength - o.low_freq_factor) / (o.high_freq_factor - o.low_freq_factor);
    frequency = wavelength > original / o.low_freq_factor
                    ? frequency / o.factor
                    : (1 - smooth) * frequency / o.factor + smooth * frequency;
  }
  return all;
}

Doubles expected(const headrace_rope_options& o) {
  const auto dim = static_cast<double>(o.rot_dim);
  const auto original = static_cast<double>(o.original_context_length);
  switch (o.scaling) {
    case HEADRACE_ROPE_SCALING_LINEAR: {
      Doubles all = plain(o.base, dim);
      for (double& frequency : all) frequency /= o.factor;
      return all;
    }
    case HEADRACE_ROPE_SCALING_NTK:
      return plain(o.base * std::pow(o.factor, dim / (dim - 2)), dim);
    case HEADRACE_ROPE_SCALING_DYNAMIC_NTK: {
      const double seqlen = std::fmax(static_cast<double>(o.seqlen), original);
      return plain(
          o.base * std::pow(o.factor * seqlen / original - (o.factor - 1), dim / (dim - 2)), dim);
    }
    case HEADRACE_ROPE_SCALING_YARN:
      return yarn(o);
    case HEADRACE_ROPE_SCALING_LLAMA3:
      return llama3(o);
    default:
      return plain(o.base, dim);
  }
}

TEST(RopeOptions, EveryScalingHasThePublishedFrequencies) {
  for (std::int32_t scaling = 0; scaling <= HEADRACE_ROPE_SCALING_LLAMA3; ++scaling)
    for (const std::int64_t rot_dim : {4, 64, 128, 576})
      for (const double base : {100.0, 10000.0, 1e6})
        for (const double factor : {1.0, 2.5, 40.0})
          for (const std::int64_t original : {1, 300, 4096, 32768})
            for (const std::int64_t seqlen : {0, 5000, 131072})
              for (const std::int32_t truncate : {0, 1}) {
                headrace_rope_options o = default_rope_options();
                o.scaling = scaling;
                o.rot_dim = rot_dim;
                o.base = base;
                o.factor = factor;
                o.original_context_length = original;
                o.seqlen = seqlen;
                o.truncate = truncate;
                const Rope rope = rope_of(o);
                const Doubles want = expected(o);
                ASSERT_EQ(rope.frequencies.size(), want.size());
                // pow() of the enlarged base in two orders: a few ulp, times the exponent.
                for (std::size_t i = 0; i < want.size(); ++i)
                  ASSERT_NEAR(rope.frequencies[i], want[i], 1e-13 * want[i])
                      << "scaling " << scaling << ", rot_dim " << rot_dim << ", pair " << i;
                ASSERT_EQ(rope.attention_factor,
                          scaling == HEADRACE_ROPE_SCALING_YARN ? get_mscale(factor, 1) : 1.0);
              }
}

// DeepSeek-V2 and V3: rope_scaling of their config.json.
TEST(RopeOptions, YarnTakesDeepSeeksMscales) {
  headrace_rope_options o = default_rope_options();
  o.scaling = HEADRACE_ROPE_SCALING_YARN;
  o.rot_dim = 64;
  o.factor = 40;
  o.original_context_length = 4096;
  o.mscale = 0.707;
  EXPECT_EQ(rope_of(o).attention_factor, get_mscale(40, 1));  // both, or none
  o.mscale_all_dim = 1.3;
  EXPECT_DOUBLE_EQ(rope_of(o).attention_factor, get_mscale(40, 0.707) / get_mscale(40, 1.3));
  o.mscale_all_dim = 0.707;
  EXPECT_EQ(rope_of(o).attention_factor, 1.0);
  o.attention_factor = 0.25;
  EXPECT_EQ(rope_of(o).attention_factor, 0.25);
}

TEST(RopeOptions, OwnFrequenciesReplaceBaseAndScaling) {
  const double own[] = {1, -0.5, 0};
  headrace_rope_options o = default_rope_options();
  o.scaling = HEADRACE_ROPE_SCALING_YARN;
  o.factor = 8;
  o.rot_dim = 6;
  o.frequencies = own;
  EXPECT_EQ(rope_of(o).frequencies, Doubles(own, own + 3));
  EXPECT_EQ(rope_of(o).attention_factor, 1.0);
  o.attention_factor = 1.19;
  EXPECT_EQ(rope_of(o).attention_factor, 1.19);
}

using Options = headrace_rope_options;

auto scaled(std::int32_t scaling) {
  return [scaling](Options& o) {
    o.scaling = scaling;
    o.factor = 2;
    o.original_context_length = 100;
  };
}
const auto yarn_of = scaled(HEADRACE_ROPE_SCALING_YARN);
const auto llama3_of = scaled(HEADRACE_ROPE_SCALING_LLAMA3);

void expect_refused(const char* text, const Options& options, testing::GoldenTexts& texts) {
  double frequencies[2] = {7, 7}, factor = 7;
  const Status bad = fill_rope(options, options.rot_dim, frequencies, &factor);
  ASSERT_TRUE(bad.has_value()) << text;
  EXPECT_EQ(bad->code, ErrorCode::invalid_argument);
  texts.add(bad->message);
  for (const char* part : {text, "must", "; "})  // what arrived, rule, remedy
    EXPECT_NE(bad->message.find(part), std::string::npos) << bad->message;
  EXPECT_TRUE(frequencies[0] == 7 && frequencies[1] == 7 && factor == 7) << text;
}

TEST(RopeOptions, ErrorsNameTheValueTheRuleAndTheRemedy) {
  testing::GoldenTexts texts("ops.txt");
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  static const double infinite[] = {1, std::numeric_limits<double>::infinity()};
  const struct {
    const char* text;
    std::function<void(Options&)> change;
  } cases[] = {
      {"layout=2", [](Options& o) { o.layout = 2; }},
      {"layout=-1", [](Options& o) { o.layout = -1; }},
      {"scaling=6", [](Options& o) { o.scaling = 6; }},
      {"scaling=-1", [](Options& o) { o.scaling = -1; }},
      {"base=0", [](Options& o) { o.base = 0; }},
      {"factor=0", [](Options& o) { scaled(HEADRACE_ROPE_SCALING_LINEAR)(o), o.factor = 0; }},
      {"factor=nan", [](Options& o) { scaled(HEADRACE_ROPE_SCALING_NTK)(o), o.factor = kNan; }},
      {"factor=-1", [](Options& o) { yarn_of(o), o.factor = -1; }},
      {"factor=0", [](Options& o) { llama3_of(o), o.factor = 0; }},
      {"rot_dim=2 with NTK",
       [](Options& o) { scaled(HEADRACE_ROPE_SCALING_NTK)(o), o.rot_dim = 2; }},
      {"original_context_length=0",
       [](Options& o) {
         scaled(HEADRACE_ROPE_SCALING_DYNAMIC_NTK)(o), o.original_context_length = 0;
       }},
      {"seqlen=-1",
       [](Options& o) { scaled(HEADRACE_ROPE_SCALING_DYNAMIC_NTK)(o), o.seqlen = -1; }},
      {"original_context_length=-5",
       [](Options& o) { yarn_of(o), o.original_context_length = -5; }},
      {"original_context_length=0",
       [](Options& o) { llama3_of(o), o.original_context_length = 0; }},
      {"beta_fast=0.5", [](Options& o) { yarn_of(o), o.beta_fast = 0.5; }},
      {"beta_slow=0", [](Options& o) { yarn_of(o), o.beta_slow = 0; }},
      {"base=1 with YaRN", [](Options& o) { yarn_of(o), o.base = 1; }},
      {"mscale=nan", [](Options& o) { yarn_of(o), o.mscale = kNan, o.mscale_all_dim = 1; }},
      {"low_freq_factor=4", [](Options& o) { llama3_of(o), o.low_freq_factor = 4; }},
      {"attention_factor=1e+300", [](Options& o) { o.attention_factor = 1e300; }},
      {"frequencies[1]=inf", [](Options& o) { o.frequencies = infinite; }},
      {"frequencies[1]=1e+07", [](Options& o) { o.base = 1e-14; }},
      {"frequencies[0]=1e+09",
       [](Options& o) { scaled(HEADRACE_ROPE_SCALING_LINEAR)(o), o.factor = 1e-9; }},
  };
  for (const auto& test_case : cases) {
    Options options = default_rope_options();
    options.rot_dim = 4;
    test_case.change(options);
    expect_refused(test_case.text, options, texts);
  }
}

}  // namespace
}  // namespace headrace
