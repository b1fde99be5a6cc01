#include "text/byte_level.h"

#include <array>
#include <cstdint>

namespace headrace::text {
namespace {

constexpr int kNumChars = 256 + 68;

constexpr bool is_printable(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

struct ByteChars {
  std::array<std::int16_t, 256> char_of{};        // code point of a byte
  std::array<std::int16_t, kNumChars> byte_of{};  // byte of a code point, -1: none
};

constexpr ByteChars make_byte_chars() {
  ByteChars chars;
  chars.byte_of.fill(-1);
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const int code_point = is_printable(byte) ? byte : next++;
    chars.char_of[static_cast<std::size_t>(byte)] = static_cast<std::int16_t>(code_point);
    chars.byte_of[static_cast<std::size_t>(code_point)] = static_cast<std::int16_t>(byte);
  }
  return chars;
}

constexpr ByteChars kByteChars = make_byte_chars();
static_assert(kByteChars.char_of[' '] == 0x120 && kByteChars.char_of['\n'] == 0x10A);
static_assert(kByteChars.char_of[173] == kNumChars - 1);

}  // namespace

std::optional<std::string> bytes_from_byte_level(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned code_point = static_cast<unsigned char>(text[i]);
    if (code_point >= 0x80) {  // all characters of the table have one or two bytes in UTF-8
      if (code_point < 0xC2 || code_point > 0xDF || ++i == text.size()) return std::nullopt;
      const unsigned second = static_cast<unsigned char>(text[i]);
      if ((second & 0xC0) != 0x80) return std::nullopt;
      code_point = (code_point & 0x1F) << 6 | (second & 0x3F);
    }
    if (code_point >= kNumChars || kByteChars.byte_of[code_point] < 0) return std::nullopt;
    bytes += static_cast<char>(kByteChars.byte_of[code_point]);
  }
  return bytes;
}

std::string byte_level_from_bytes(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    const int code_point = kByteChars.char_of[static_cast<unsigned char>(byte)];
    if (code_point < 0x80) {
      text += static_cast<char>(code_point);
    } else {
      text += static_cast<char>(0xC0 | code_point >> 6);
      text += static_cast<char>(0x80 | (code_point & 0x3F));
    }
  }
  return text;
}

}  // namespace headrace::text
