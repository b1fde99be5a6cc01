#include "weights/random_normal.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numbers>
#include <vector>

#include "core/philox.h"

namespace headrace {
namespace {

std::vector<float> numbers(std::uint64_t seed, std::uint32_t stream, std::int64_t first,
                           std::size_t count) {
  std::vector<float> out(count);
  random_normals(seed, stream, first, out);
  return out;
}

// Box and Muller in double, with the C library.
double reference(std::uint64_t seed, std::uint32_t stream, std::uint64_t idx) {
  const auto group = idx / 4;
  const PhiloxWords words = philox4x32<kPhiloxRounds>(
      {{static_cast<std::uint32_t>(group), static_cast<std::uint32_t>(group >> 32), stream, 0}},
      static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
  const std::size_t pair = idx % 4 / 2 * 2;
  const double uniform = ((words.word[pair] >> 8) + 1) * 0x1p-24;
  const double angle = (words.word[pair + 1] >> 8) * 0x1p-24 * 2 * std::numbers::pi;
  const double radius = std::sqrt(-2 * std::log(uniform));
  return radius * (idx % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

TEST(RandomNormal, EqualsBoxMullerInDouble) {
  constexpr std::size_t kCount = 1 << 20;
  const std::vector<float> got = numbers(0x123456789abcdef0, 5, 0, kCount);
  // The radius is at most 5.8. Its error: ln to 2^-22 absolute is less than 2^-22 / radius, which
  // grows for small radii to sqrt(2 * 2^-22) = 2^-10.5 at most; the factor |cos| is at most 1.
  for (std::size_t i = 0; i < kCount; ++i) {
    const double expected = reference(0x123456789abcdef0, 5, i);
    const double radius = std::hypot(reference(0x123456789abcdef0, 5, i / 2 * 2),
                                     reference(0x123456789abcdef0, 5, i / 2 * 2 + 1));
    ASSERT_NEAR(got[i], expected, 0x1p-20 * radius + std::min(0x1p-22 / radius, 0x1p-10)) << i;
  }
}

// n = 2^22 samples: a moment of order k has the standard deviation sqrt((E x^2k - (E x^k)^2) / n);
// six of them are allowed.
TEST(RandomNormal, HasTheMomentsOfTheNormalDistribution) {
  constexpr std::size_t kCount = 1 << 22;
  double sums[4] = {}, above_two = 0;
  for (const float value : numbers(1, 0, 0, kCount)) {
    double power = 1;
    for (double& sum : sums) sum += power *= value;
    above_two += std::fabs(value) > 2 ? 1 : 0;
  }
  const double expected[4] = {0, 1, 0, 3}, variances[4] = {1, 2, 15, 96};
  const double n = kCount;
  for (int k = 0; k < 4; ++k)
    EXPECT_NEAR(sums[k] / n, expected[k], 6 * std::sqrt(variances[k] / n)) << "order " << k + 1;
  const double share = std::erfc(std::numbers::sqrt2);
  EXPECT_NEAR(above_two / n, share, 6 * std::sqrt(share * (1 - share) / n));
}

TEST(RandomNormal, PartsEqualTheWhole) {
  const std::vector<float> whole = numbers(3, 4, 0, 1001);
  for (const std::size_t first : {0, 4, 400, 1000}) {
    const std::vector<float> part =
        numbers(3, 4, static_cast<std::int64_t>(first), whole.size() - first);
    for (std::size_t i = 0; i < part.size(); ++i) ASSERT_EQ(part[i], whole[first + i]) << first;
  }
}

TEST(RandomNormal, SeedsStreamsAndFarPositionsDiffer) {
  const std::vector<float> base = numbers(1, 2, 0, 64);
  for (const auto& other : {numbers(2, 2, 0, 64), numbers(1 + (std::uint64_t{1} << 32), 2, 0, 64),
                            numbers(1, 3, 0, 64), numbers(1, 2, std::int64_t{1} << 34, 64)})
    for (std::size_t i = 0; i < base.size(); ++i) EXPECT_NE(other[i], base[i]) << i;
}

// The bits are part of what a seed means: equal on every machine and compiler.
TEST(RandomNormal, HasTheSameBitsEverywhere) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const float value : numbers(42, 0, 0, 1 << 16))
    hash = (hash ^ std::bit_cast<std::uint32_t>(value)) * 0x100000001b3;
  EXPECT_EQ(hash, 1323026240178197895u);
}

}  // namespace
}  // namespace headrace
