#include "base/utf8.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace headrace {
namespace {

// Encodes a code point in the standard's four formats, surrogates included.
std::string encode(std::uint32_t c) {
  const auto byte = [](std::uint32_t value) { return static_cast<char>(value); };
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xC0 | c >> 6), byte(0x80 | (c & 63))};
  if (c < 0x10000) return {byte(0xE0 | c >> 12), byte(0x80 | (c >> 6 & 63)), byte(0x80 | (c & 63))};
  return {byte(0xF0 | c >> 18), byte(0x80 | (c >> 12 & 63)), byte(0x80 | (c >> 6 & 63)),
          byte(0x80 | (c & 63))};
}

TEST(Utf8, EveryCodePointIsOneCharacterAndEveryProperPrefixIsUnfinished) {
  for (std::uint32_t c = 0; c < 0x110000; ++c) {
    const std::string text = encode(c);
    const bool surrogate = c >= 0xD800 && c < 0xE000;
    ASSERT_EQ(utf8_first_char(text + "a"), surrogate ? 0 : text.size()) << c;
    ASSERT_EQ(utf8_unfinished_tail(text), 0u) << c;
    for (std::size_t n = 1; n < text.size(); ++n) {
      const std::size_t unfinished = surrogate && n == 2 ? 0 : n;
      ASSERT_EQ(utf8_unfinished_tail(std::string("a").append(text, 0, n)), unfinished) << c;
      ASSERT_EQ(utf8_first_char(text.substr(0, n)), 0u) << c;
    }
  }
}

TEST(Utf8, OnlyTheEncodingsOfCodePointsAreCharacters) {
  // All pairs of first and second byte; 0xA0, 0x80 complete the longer characters.
  int accepted = 0;
  for (int first = 0x80; first < 0x100; ++first)
    for (int second = 0; second < 0x100; ++second) {
      const std::string text = {static_cast<char>(first), static_cast<char>(second), '\x80',
                                '\x80'};
      accepted += utf8_first_char(text) != 0;
    }
  // C2..DF 64 each; E0 32, E1..EC 64, ED 32, EE..EF 64; F0 48, F1..F3 64, F4 16.
  EXPECT_EQ(accepted, 30 * 64 + 32 + 12 * 64 + 32 + 2 * 64 + 48 + 3 * 64 + 16);
  EXPECT_EQ(utf8_first_char(""), 0u);
  EXPECT_EQ(utf8_first_char("\xF4\x90\x80\x80"), 0u);  // U+110000
  EXPECT_EQ(utf8_first_char("\xC0\x80"), 0u);          // overlong U+0000
  EXPECT_EQ(utf8_unfinished_tail("\x80\x80"), 0u);
  EXPECT_EQ(utf8_unfinished_tail(""), 0u);
}

}  // namespace
}  // namespace headrace
