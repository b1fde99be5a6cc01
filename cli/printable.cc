#include "printable.h"

namespace headrace::cli {
namespace {

// Length in bytes of the complete UTF-8 character at the start; 0: none.
std::size_t character_bytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const std::size_t length = first < 0x80    ? 1
                             : first > 0xf4  ? 0
                             : first >= 0xf0 ? 4
                             : first >= 0xe0 ? 3
                             : first >= 0xc2 ? 2
                                             : 0;
  if (length > text.size() || first < 0x20 || first == 0x7f) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return 0;
  const bool is_control = first == 0xc2 && static_cast<unsigned char>(text[1]) < 0xa0;  // C1
  return is_control ? 0 : length;
}

}  // namespace

std::string printable(std::string_view bytes) {
  constexpr const char* kHex = "0123456789abcdef";
  std::string text;
  while (!bytes.empty()) {
    const std::size_t length = character_bytes(bytes);
    const auto first = static_cast<unsigned char>(bytes[0]);
    if (length > 0)
      text += bytes.substr(0, length);
    else if (first == '\n')
      text += "\\n";
    else
      text += {'\\', 'x', kHex[first >> 4], kHex[first & 15]};
    bytes.remove_prefix(length > 0 ? length : 1);
  }
  return text;
}

}  // namespace headrace::cli
