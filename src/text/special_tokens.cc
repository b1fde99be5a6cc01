#include "text/special_tokens.h"

#include <algorithm>

namespace headrace::text {

void SpecialTokens::add(std::string text, TokenId id) {
  starts_[static_cast<unsigned char>(text.front())] = true;
  entries_.push_back({std::move(text), id});
}

TokenId SpecialTokens::sort() {
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return a.text != b.text ? a.text < b.text : a.id < b.id;
  });
  const auto twice =
      std::adjacent_find(entries_.begin(), entries_.end(),
                         [](const Entry& a, const Entry& b) { return a.text == b.text; });
  return twice == entries_.end() ? -1 : (twice + 1)->id;
}

SpecialTokens::Match SpecialTokens::match(std::string_view text) const {
  Match longest;
  auto begin = entries_.begin(), end = entries_.end();
  // [begin, end): entries that share the first `depth` bytes of `text`, the shortest first.
  for (std::size_t depth = 0; begin != end; ++depth) {
    if (begin->text.size() == depth) {
      longest = {depth, begin->id};
      ++begin;
    }
    if (depth == text.size()) break;
    const auto byte = static_cast<unsigned char>(text[depth]);
    const auto at = [depth](const Entry& entry) {
      return static_cast<unsigned char>(entry.text[depth]);
    };
    begin = std::partition_point(begin, end, [&](const Entry& e) { return at(e) < byte; });
    end = std::partition_point(begin, end, [&](const Entry& e) { return at(e) == byte; });
  }
  return longest;
}

std::size_t SpecialTokens::next_start(std::string_view text, std::size_t from) const {
  while (from < text.size() && !starts_[static_cast<unsigned char>(text[from])]) ++from;
  return from;
}

TokenId SpecialTokens::find(std::string_view text) const {
  const auto it =
      std::lower_bound(entries_.begin(), entries_.end(), text,
                       [](const Entry& entry, std::string_view t) { return entry.text < t; });
  return it != entries_.end() && it->text == text ? it->id : -1;
}

}  // namespace headrace::text
