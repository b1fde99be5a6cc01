#include "base/utf8.h"

#include <algorithm>

namespace headrace {
namespace {

// Implied by a lead byte: length of the character (0: no lead byte) and range of its second byte.
struct Lead {
  std::size_t length;
  unsigned char low = 0x80, high = 0xBF;
};

Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {0};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

// True if the available bytes after the lead byte are valid continuations.
bool fits(Lead lead, std::string_view text) {
  const std::size_t known = std::min(lead.length, text.size());
  for (std::size_t i = 1; i < known; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < (i == 1 ? lead.low : 0x80) || byte > (i == 1 ? lead.high : 0xBF)) return false;
  }
  return lead.length != 0;
}

}  // namespace

std::size_t utf8_first_char(std::string_view text) {
  if (text.empty()) return 0;
  const Lead lead = lead_of(static_cast<unsigned char>(text.front()));
  return lead.length <= text.size() && fits(lead, text) ? lead.length : 0;
}

std::size_t utf8_unfinished_tail(std::string_view text) {
  for (std::size_t bytes = 1; bytes <= std::min<std::size_t>(3, text.size()); ++bytes) {
    const std::string_view tail = text.substr(text.size() - bytes);
    const Lead lead = lead_of(static_cast<unsigned char>(tail.front()));
    if (lead.length > bytes && fits(lead, tail)) return bytes;
  }
  return 0;
}

}  // namespace headrace
