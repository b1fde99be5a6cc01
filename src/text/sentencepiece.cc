#include "text/sentencepiece.h"

#include <charconv>

#include "base/utf8.h"

namespace headrace::text {

std::optional<std::string> text_from_piece(std::string_view piece) {
  std::string text;
  while (!piece.empty()) {
    const std::size_t bytes = utf8_first_char(piece);
    if (bytes == 0) return std::nullopt;
    text += piece.starts_with(kSpaceMark) ? " " : piece.substr(0, bytes);
    piece.remove_prefix(bytes);
  }
  return text;
}

std::optional<unsigned char> byte_from_piece(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || !piece.ends_with('>')) return std::nullopt;
  unsigned char value = 0;
  const char* end = piece.data() + 5;
  const auto [parsed, error] = std::from_chars(piece.data() + 3, end, value, 16);
  if (error != std::errc() || parsed != end) return std::nullopt;
  return value;
}

}  // namespace headrace::text
