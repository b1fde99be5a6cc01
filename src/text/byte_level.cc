#include "text/byte_level.h"

#include <array>
#include <cstdint>

namespace headrace::text {
namespace {

constexpr int kLetters = 256 + 68;

constexpr bool stands_for_itself(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

struct Alphabet {
  std::array<std::int16_t, 256> letter{};     // code point of a byte
  std::array<std::int16_t, kLetters> byte{};  // byte of a code point, -1: none
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.byte.fill(-1);
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const int letter = stands_for_itself(byte) ? byte : next++;
    alphabet.letter[static_cast<std::size_t>(byte)] = static_cast<std::int16_t>(letter);
    alphabet.byte[static_cast<std::size_t>(letter)] = static_cast<std::int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();
static_assert(kAlphabet.letter[' '] == 0x120 && kAlphabet.letter['\n'] == 0x10A);
static_assert(kAlphabet.letter[173] == kLetters - 1);

}  // namespace

std::optional<std::string> bytes_from_byte_level(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned letter = static_cast<unsigned char>(text[i]);
    if (letter >= 0x80) {  // all letters have one or two bytes in UTF-8
      if (letter < 0xC2 || letter > 0xDF || ++i == text.size()) return std::nullopt;
      const unsigned second = static_cast<unsigned char>(text[i]);
      if ((second & 0xC0) != 0x80) return std::nullopt;
      letter = (letter & 0x1F) << 6 | (second & 0x3F);
    }
    if (letter >= kLetters || kAlphabet.byte[letter] < 0) return std::nullopt;
    bytes += static_cast<char>(kAlphabet.byte[letter]);
  }
  return bytes;
}

std::string byte_level_from_bytes(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    const int letter = kAlphabet.letter[static_cast<unsigned char>(byte)];
    if (letter < 0x80) {
      text += static_cast<char>(letter);
    } else {
      text += static_cast<char>(0xC0 | letter >> 6);
      text += static_cast<char>(0x80 | (letter & 0x3F));
    }
  }
  return text;
}

}  // namespace headrace::text
