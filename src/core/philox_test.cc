#include "core/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace headrace {
namespace {

struct KnownAnswer {
  PhiloxWords counter;
  std::uint32_t key0, key1;
  PhiloxWords answer;
};

template <int kRounds>
void expect_answers(const std::vector<KnownAnswer>& answers) {
  for (const KnownAnswer& known : answers) {
    const PhiloxWords words = philox4x32<kRounds>(known.counter, known.key0, known.key1);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(words.word[i], known.answer.word[i]) << i;
  }
}

// Known answers published with Random123 (kat_vectors, philox4x32 7 and 10).
TEST(Philox, MatchesPublishedVectors) {
  const std::uint32_t f = 0xffffffffu;
  const PhiloxWords zeros{{0, 0, 0, 0}}, ones{{f, f, f, f}};
  const PhiloxWords pi{{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}};
  expect_answers<7>({
      {zeros, 0, 0, {{0x5f6fb709u, 0x0d893f64u, 0x4f121f81u, 0x4f730a48u}}},
      {ones, f, f, {{0x5207ddc2u, 0x45165e59u, 0x4d8ee751u, 0x8c52f662u}}},
      {pi, 0xa4093822u, 0x299f31d0u, {{0x4dfccabau, 0x190a87f0u, 0xc47362bau, 0xb6b5242au}}},
  });
  expect_answers<10>({
      {zeros, 0, 0, {{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}}},
      {ones, f, f, {{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}}},
      {pi, 0xa4093822u, 0x299f31d0u, {{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}}},
  });
}

TEST(Dropout, KeepsTheFractionOneMinusP) {
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
