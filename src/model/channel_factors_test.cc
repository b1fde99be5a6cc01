#include "model/channel_factors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace headrace::model {
namespace {

Config config_of(RopeLayout layout, std::int64_t rope_dim) {
  Config config;
  config.num_kv_heads = 2;
  config.head_dim = 8;
  config.rope_layout = layout;
  config.rope_dim = rope_dim;
  return config;
}

using Floats = std::vector<float>;

TEST(RowVariances, AreSumsOfTheSquaresBehindTheNorm) {
  const Floats matrix = {1, 2, 3, -1, 0, 4}, norm = {2, 1, 0.5};
  EXPECT_EQ(row_variances(matrix, norm), (Floats{4 + 4 + 2.25, 4 + 4}));
}

// A large bias is that of its pair, since the rotation moves it from one channel to the other.
TEST(ChannelFactors, AreThoseOfARotatedPair) {
  const Floats variances(16, 1.0F / 9);
  Floats bias(16);
  bias[1] = 15;
  bias[8 + 6] = -60;
  EXPECT_EQ(channel_factors(config_of(RopeLayout::halves, 8), bias, variances),
            (Floats{1, 8, 1, 1, 1, 8, 1, 1, 1, 1, 32, 1, 1, 1, 32, 1}));
  EXPECT_EQ(channel_factors(config_of(RopeLayout::interleaved, 8), bias, variances),
            (Floats{8, 8, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 32, 32}));
  // Channels behind the rotated ones are alone.
  EXPECT_EQ(channel_factors(config_of(RopeLayout::halves, 4), bias, variances),
            (Floats{1, 8, 1, 8, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 64, 1}));
}

// Of three deviations without a bias, beside the head's channels alone, to the nearest power of
// two.
TEST(ChannelFactors, FollowVariancesToo) {
  const Floats bias(16);
  Floats variances(16, 4);
  for (int i = 8; i < 16; ++i) variances[static_cast<std::size_t>(i)] = 400;
  variances[0] = 4 * 100;
  variances[8] = 400.0F / 16;
  EXPECT_EQ(channel_factors(config_of(RopeLayout::halves, 0), bias, variances),
            (Floats{8, 1, 1, 1, 1, 1, 1, 1, 0.25, 1, 1, 1, 1, 1, 1, 1}));
}

TEST(ChannelFactors, StayWithinTheRangeOfQueriesInF16) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = NAN;
  Floats variances(16, 1);
  variances[8] = 1e-9F;
  const Config config = config_of(RopeLayout::halves, 0);
  EXPECT_EQ(
      channel_factors(config, Floats{1e6, kInf, kNan, 1e15F, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
                      variances),
      (Floats{256, 1, 1, 256, 1, 1, 1, 1, 1.0F / 256, 1, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(channel_factors(config, Floats(16), Floats(16)), Floats(16, 1));
}

}  // namespace
}  // namespace headrace::model
