// Cosines and sines of the GPU's RoPE against double, over positions and frequencies.
#include "backends/cuda/elementwise/angle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "tests/support/random.h"

namespace headrace::cuda {
namespace {

void expect_near(int position, double frequency) {
  const CosSin got = cos_sin(position, frequency);
  const double angle = position * frequency;
  const double bound = 0x1p-23 + std::abs(angle) * 0x1p-51;
  ASSERT_NEAR(got.cos, std::cos(angle), bound) << position << " * " << frequency;
  ASSERT_NEAR(got.sin, std::sin(angle), bound) << position << " * " << frequency;
}

TEST(RopeAngle, IsWithinItsBound) {
  testing::Random random(1);
  for (int i = 0; i < 100000; ++i) {
    const double frequency = std::exp2(-20 * random.uniform()) * (random.chance(20) ? -3 : 1);
    const auto position = static_cast<int>(std::exp2(31 * random.uniform()) - 1);
    expect_near(random.chance(20) ? -position : position, frequency);
  }
  // Around multiples of an eighth of a turn, where the quarter changes.
  for (int eighth = -40; eighth <= 40; ++eighth)
    for (const double shift : {-1e-9, -1e-17, 0.0, 1e-17, 1e-9})
      expect_near(1, eighth * std::numbers::pi / 4 + shift);
}

TEST(RopeAngle, IsExactWhereNothingTurns) {
  for (const int position : {0, 1, -1, std::numeric_limits<int>::max()})
    for (const double frequency : {0.0, position == 0 ? 1e6 : 0.0}) {
      EXPECT_EQ(cos_sin(position, frequency).cos, 1.0f);
      EXPECT_EQ(cos_sin(position, frequency).sin, 0.0f);
    }
}

// The largest frequency that options may have, at the ends of int32.
TEST(RopeAngle, ReducesTheLargestAngles) {
  for (const int position : {std::numeric_limits<int>::max(), std::numeric_limits<int>::min()}) {
    const CosSin got = cos_sin(position, 1e6);
    EXPECT_NEAR(got.cos * got.cos + got.sin * got.sin, 1, 1e-6);
  }
}

}  // namespace
}  // namespace headrace::cuda
