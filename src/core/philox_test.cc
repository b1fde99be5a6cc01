#include "core/philox.h"

#include <gtest/gtest.h>

#include <cmath>

namespace headrace {
namespace {

// Known answers published with Random123 (kat_vectors, philox4x32 10).
TEST(Philox, MatchesPublishedVectors) {
  const auto zero = philox4x32_10({{0, 0, 0, 0}}, 0, 0);
  EXPECT_EQ(zero.word[0], 0x6627e8d5u);
  EXPECT_EQ(zero.word[1], 0xe169c58du);
  EXPECT_EQ(zero.word[2], 0xbc57ac4cu);
  EXPECT_EQ(zero.word[3], 0x9b00dbd8u);
  const std::uint32_t f = 0xffffffffu;
  const auto ones = philox4x32_10({{f, f, f, f}}, f, f);
  EXPECT_EQ(ones.word[0], 0x408f276du);
  EXPECT_EQ(ones.word[1], 0x41c83b0eu);
  EXPECT_EQ(ones.word[2], 0xa20bc7c6u);
  EXPECT_EQ(ones.word[3], 0x6d5451fdu);
}

TEST(Dropout, KeepsTheStatedFraction) {
  const DropoutRow row{.seed = 7, .offset = 3, .batch_head = 5, .query = 11};
  const std::uint32_t threshold = dropout_keep_threshold(0.25);
  EXPECT_EQ(threshold, 49152u);
  const int n = 1 << 20;
  int kept = 0;
  for (int key = 0; key < n; ++key) kept += row.bits16(key) < threshold;
  EXPECT_NEAR(kept / static_cast<double>(n), 0.75, 5 * std::sqrt(0.25 * 0.75 / n));
}

}  // namespace
}  // namespace headrace
