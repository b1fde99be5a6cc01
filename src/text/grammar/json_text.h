// The tokens of JSON as fragments of an Nfa.
//
// Numbers have at most 19 digits before the point, 20 behind it and an exponent up to 199, so that
// every reader can read them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/grammar/nfa.h"

namespace headrace::text {

// One character of a JSON string, as itself or escaped.
void build_string_character(Nfa& nfa, StateId from, StateId to);
// One character of `set` in a JSON string; escaped only where JSON demands it.
void build_string_characters(Nfa& nfa, StateId from, StateId to, const CodePoints& set);
// A JSON string of unescaped characters, with its quotes, that is none of `names`.
void build_other_key(Nfa& nfa, StateId from, StateId to, const std::vector<std::string>& names);
// Nothing, a space, or an end of line and blanks.
void build_space(Nfa& nfa, StateId from, StateId to);

struct Bound {
  std::int64_t value;
  bool is_exclusive;
};
struct Range {
  std::optional<Bound> min = {}, max = {};  // absent: none
};
// Whole numbers without point and exponent. False: there is none in the range.
bool build_integer(Nfa& nfa, StateId from, StateId to, const Range& range);
// With a range, numbers have no exponent.
bool build_number(Nfa& nfa, StateId from, StateId to, const Range& range);

}  // namespace headrace::text
