// A cursor over the text of a grammar, and its positions in messages.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/utf8.h"
#include "text/grammar/code_points.h"

namespace headrace::text {

// Levels of groups, objects and arrays in the text of a grammar.
inline constexpr int kMaxGrammarNesting = 200;
// Counts of a repetition; the states that they make are bounded too.
inline constexpr std::int64_t kMaxRepetitions = 100'000;

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool at_end() const { return at_ == text_.size(); }
  // The next byte; 0 at the end.
  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool starts_with(std::string_view prefix) const { return text_.substr(at_).starts_with(prefix); }
  // Skips `prefix` if it is next.
  bool take(std::string_view prefix) {
    if (!starts_with(prefix)) return false;
    at_ += prefix.size();
    return true;
  }
  void skip(std::size_t bytes) { at_ += bytes; }
  void seek(std::size_t position) { at_ = position; }
  std::size_t position() const { return at_; }
  std::string_view since(std::size_t begin) const { return text_.substr(begin, at_ - begin); }

  // The next character of valid UTF-8. invalid_argument: a byte that belongs to none.
  Result<char32_t> character(std::string_view what) {
    const std::size_t size = utf8_first_char(text_.substr(at_));
    if (size == 0)
      return fail(what, at_end() ? "ends too early" : "not valid UTF-8", "complete it");
    auto value = static_cast<char32_t>(static_cast<unsigned char>(text_[at_]));
    if (size > 1) value &= 0x7FU >> size;
    for (std::size_t i = 1; i < size; ++i)
      value = value << 6 | (static_cast<unsigned char>(text_[at_ + i]) & 0x3FU);
    at_ += size;
    return value;
  }
  // Up to `most` hexadecimal digits, at least `least`; absent: fewer, or no code point.
  std::optional<char32_t> hex(std::size_t least, std::size_t most) {
    char32_t value = 0;
    std::size_t n = 0;
    for (; n < most; ++n, ++at_) {
      const char c = peek();
      if (c >= '0' && c <= '9')
        value = value * 16 + static_cast<char32_t>(c - '0');
      else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
        value = value * 16 + static_cast<char32_t>((c | 0x20) - 'a' + 10);
      else
        break;
    }
    const bool is_character =
        value <= kMaxCodePoint && (value < kFirstSurrogate || value > kLastSurrogate);
    if (n < least || !is_character) return std::nullopt;
    return value;
  }
  // A decimal count; absent: no digit, or above kMaxRepetitions.
  std::optional<std::int64_t> count() {
    std::int64_t value = -1;
    for (; peek() >= '0' && peek() <= '9'; ++at_)
      value = std::min(std::max<std::int64_t>(value, 0) * 10 + (peek() - '0'), kMaxRepetitions + 1);
    if (value < 0 || value > kMaxRepetitions) return std::nullopt;
    return value;
  }

  Failure fail(std::string_view what, std::string_view problem, std::string_view remedy) const {
    const std::string_view before = text_.substr(0, at_);
    const auto line = std::ranges::count(before, '\n') + 1;
    const std::size_t column = at_ - (before.rfind('\n') + 1) + 1;  // npos + 1 is 0
    return invalid_argument("{}: line {}, column {}: {}; {}", what, line, column, problem, remedy);
  }

 private:
  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace headrace::text
