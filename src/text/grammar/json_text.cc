#include "text/grammar/json_text.h"

#include <algorithm>
#include <map>

#include "base/utf8.h"
#include "text/grammar/json.h"
#include "text/grammar/reader.h"

namespace headrace::text {
namespace {

constexpr std::int64_t kMaxIndent = 40;  // blanks after an end of line

// Characters that need no escape.
const CodePoints& unescaped() {
  static const CodePoints kSet = complement({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}});
  return kSet;
}

// Hexadecimal digits of either case, in ranges of ASCII.
using Digits = std::vector<std::pair<char, char>>;
const Digits kHexDigits = {{'0', '9'}, {'a', 'f'}, {'A', 'F'}};

StateId add_digit(Nfa& nfa, StateId from, const Digits& digits) {
  const StateId to = nfa.add_state();
  for (const auto& [low, high] : digits)
    nfa.bytes(from, to, static_cast<std::uint8_t>(low), static_cast<std::uint8_t>(high));
  return to;
}

StateId add_literal(Nfa& nfa, StateId from, std::string_view text) {
  const StateId to = nfa.add_state();
  nfa.literal(from, to, text);
  return to;
}

// What follows \u: no surrogate, or two that belong together.
void build_unicode_escape(Nfa& nfa, StateId from, StateId to) {
  const auto rest = [&](StateId state, int num_digits) {
    for (int i = 0; i < num_digits; ++i) state = add_digit(nfa, state, kHexDigits);
    return state;
  };
  const StateId other =
      add_digit(nfa, from, {{'0', '9'}, {'a', 'c'}, {'A', 'C'}, {'e', 'f'}, {'E', 'F'}});
  nfa.link(rest(other, 3), to);
  const StateId d = add_digit(nfa, from, {{'d', 'd'}, {'D', 'D'}});
  nfa.link(rest(add_digit(nfa, d, {{'0', '7'}}), 2), to);
  const StateId high = rest(add_digit(nfa, d, {{'8', '9'}, {'a', 'b'}, {'A', 'B'}}), 2);
  const StateId low = add_digit(nfa, add_literal(nfa, high, "\\u"), {{'d', 'd'}, {'D', 'D'}});
  nfa.link(rest(add_digit(nfa, low, {{'c', 'f'}, {'C', 'F'}}), 2), to);
}

}  // namespace

void build_string_character(Nfa& nfa, StateId from, StateId to) {
  nfa.characters(from, to, unescaped());
  const StateId escape = add_literal(nfa, from, "\\");
  for (const char c : std::string_view("\"\\/bfnrt")) nfa.literal(escape, to, {&c, 1});
  build_unicode_escape(nfa, add_literal(nfa, escape, "u"), to);
}

void build_string_characters(Nfa& nfa, StateId from, StateId to, const CodePoints& set) {
  nfa.characters(from, to, intersect(set, unescaped()));
  const CodePoints escaped = intersect(set, complement(unescaped()));
  for (const CodePointRange& range : escaped)
    for (char32_t c = range.first; c <= range.last; ++c) {
      const char byte = static_cast<char>(c);
      const std::string text = quoted({&byte, 1});
      nfa.literal(from, to, std::string_view(text).substr(1, text.size() - 2));
    }
}

void build_other_key(Nfa& nfa, StateId from, StateId to, const std::vector<std::string>& names) {
  struct Place {  // after a common prefix of names
    StateId state;
    std::map<char32_t, std::size_t> children = {};
    bool is_name = false;
  };
  std::vector<Place> places = {{add_literal(nfa, from, "\"")}};
  for (const std::string& name : names) {
    std::size_t at = 0;
    Reader in(name);
    while (!in.at_end()) {
      const char32_t c = in.character("key").value();  // parse_json() has checked it
      const auto [child, is_new] = places[at].children.try_emplace(c, places.size());
      at = child->second;
      if (is_new) places.push_back({nfa.add_state()});
    }
    places[at].is_name = true;
  }
  const StateId other = nfa.add_state();  // after a character that no name has there
  nfa.characters(other, other, unescaped());
  nfa.literal(other, to, "\"");
  for (const Place& place : places) {
    CodePoints known;
    for (const auto& [c, child] : place.children) {
      known.push_back({c, c});
      nfa.characters(place.state, places[child].state, intersect({{c, c}}, unescaped()));
    }
    nfa.characters(place.state, other, intersect(unescaped(), complement(known)));
    if (!place.is_name) nfa.literal(place.state, to, "\"");
  }
}

void build_space(Nfa& nfa, StateId from, StateId to) {
  nfa.link(from, to);
  nfa.literal(from, to, " ");
  nfa.repeat(add_literal(nfa, from, "\n"), to, 0, kMaxIndent, [&](StateId begin, StateId end) {
    nfa.characters(begin, end, {{'\t', '\t'}, {' ', ' '}});
  });
}

}  // namespace headrace::text
