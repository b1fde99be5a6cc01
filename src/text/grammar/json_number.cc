// Numbers in ranges, as digits.
#include <algorithm>
#include <string>

#include "text/grammar/json_text.h"

namespace headrace::text {
namespace {

constexpr std::uint64_t kMaxMagnitude = 9'999'999'999'999'999'999U;  // 19 digits
constexpr std::int64_t kMaxFraction = 20;

void digits(Nfa& nfa, StateId from, StateId to, std::int64_t min, std::int64_t max) {
  nfa.repeat(from, to, min, max,
             [&](StateId begin, StateId end) { nfa.bytes(begin, end, '0', '9'); });
}

// Numbers with as many digits as `low` and `high` have, between them, from digit `i` on.
void equal_length(Nfa& nfa, StateId from, StateId to, std::string_view low, std::string_view high) {
  if (low.empty()) return nfa.link(from, to);
  const std::string least(low.size() - 1, '0'), most(low.size() - 1, '9');
  const auto step = [&](char first, char last) {
    const StateId next = nfa.add_state();
    nfa.bytes(from, next, static_cast<std::uint8_t>(first), static_cast<std::uint8_t>(last));
    return next;
  };
  const std::string_view low_rest = low.substr(1), high_rest = high.substr(1);
  if (low.front() == high.front())
    return equal_length(nfa, step(low.front(), low.front()), to, low_rest, high_rest);
  char first = low.front(), last = high.front();
  if (low_rest != least) equal_length(nfa, step(first++, low.front()), to, low_rest, most);
  if (high_rest != most) equal_length(nfa, step(last--, high.front()), to, least, high_rest);
  const auto num_rest = static_cast<std::int64_t>(low_rest.size());
  if (first <= last) digits(nfa, step(first, last), to, num_rest, num_rest);
}

// Whole numbers from `low` to `high`, without leading zeros.
void magnitudes(Nfa& nfa, StateId from, StateId to, std::uint64_t low, std::uint64_t high) {
  while (low <= high) {
    const std::string text = std::to_string(low);
    // The largest number of as many digits; 19 nines fit.
    const std::uint64_t nines =
        std::stoull(std::string(std::min<std::size_t>(text.size(), 19), '9'));
    const std::uint64_t last = std::min(high, nines);
    equal_length(nfa, from, to, text, std::to_string(last));
    if (last >= kMaxMagnitude) return;
    low = last + 1;
  }
}

struct Magnitude {
  std::uint64_t value;
  bool is_exclusive;
};

std::uint64_t absolute(std::int64_t value) {
  return value < 0 ? std::uint64_t{0} - static_cast<std::uint64_t>(value)
                   : static_cast<std::uint64_t>(value);
}

// Splits a range at 0: build(from, low, high) for the magnitudes of each sign.
template <class Build>
void for_each_sign(Nfa& nfa, StateId from, const Range& range, Build build) {
  const Magnitude none{kMaxMagnitude, false}, zero{0, false};
  const auto magnitude = [](const Bound& bound) {
    return Magnitude{absolute(bound.value), bound.is_exclusive};
  };
  if (!range.max || range.max->value >= 0)
    build(from, range.min && range.min->value >= 0 ? magnitude(*range.min) : zero,
          range.max ? magnitude(*range.max) : none);
  if (range.min && range.min->value >= 0) return;
  const StateId minus = nfa.add_state();
  nfa.literal(from, minus, "-");
  build(minus, range.max && range.max->value <= 0 ? magnitude(*range.max) : zero,
        range.min ? magnitude(*range.min) : none);
}

}  // namespace

bool build_integer(Nfa& nfa, StateId from, StateId to, const Range& range) {
  bool has_any = false;
  for_each_sign(nfa, from, range, [&](StateId begin, Magnitude low, Magnitude high) {
    if (high.is_exclusive && high.value == 0) return;
    const std::uint64_t first = low.value + low.is_exclusive;
    const std::uint64_t last = high.value - high.is_exclusive;
    if (first > last) return;
    has_any = true;
    magnitudes(nfa, begin, to, first, last);
  });
  return has_any;
}

bool build_number(Nfa& nfa, StateId from, StateId to, const Range& range) {
  const auto point = [&](StateId begin) {
    const StateId next = nfa.add_state();
    nfa.literal(begin, next, ".");
    return next;
  };
  bool has_any = false;
  const bool has_range = range.min || range.max;
  for_each_sign(nfa, from, range, [&](StateId begin, Magnitude low, Magnitude high) {
    if (low.value > high.value ||
        (low.value == high.value && (low.is_exclusive || high.is_exclusive)))
      return;
    has_any = true;
    std::uint64_t first = low.value;
    if (low.is_exclusive) {  // a fraction that is not 0
      const StateId whole = nfa.add_state();
      magnitudes(nfa, begin, whole, first, first);
      const StateId zeros = nfa.add_state(), nonzero = nfa.add_state();
      digits(nfa, point(whole), zeros, 0, kMaxFraction / 2);
      nfa.bytes(zeros, nonzero, '1', '9');
      digits(nfa, nonzero, to, 0, kMaxFraction / 2);
      ++first;
    }
    const bool is_bounded = high.value != kMaxMagnitude;
    if (is_bounded && !high.is_exclusive) {
      const StateId whole = nfa.add_state();
      magnitudes(nfa, begin, whole, high.value, high.value);
      nfa.link(whole, to);
      nfa.repeat(point(whole), to, 1, kMaxFraction,
                 [&](StateId b, StateId e) { nfa.bytes(b, e, '0', '0'); });
    }
    if (is_bounded && high.value == 0) return;
    const std::uint64_t last = is_bounded ? high.value - 1 : kMaxMagnitude;
    if (first > last) return;
    const StateId whole = nfa.add_state(), end = nfa.add_state();
    magnitudes(nfa, begin, whole, first, last);
    nfa.link(whole, end);
    digits(nfa, point(whole), end, 1, kMaxFraction);
    nfa.link(end, to);
    if (has_range) return;
    const StateId e = nfa.add_state(), sign = nfa.add_state();
    nfa.characters(end, e, {{'E', 'E'}, {'e', 'e'}});
    nfa.link(e, sign);
    nfa.characters(e, sign, {{'+', '+'}, {'-', '-'}});
    digits(nfa, sign, to, 1, 2);
    const StateId hundreds = nfa.add_state();
    nfa.literal(sign, hundreds, "1");
    digits(nfa, hundreds, to, 2, 2);
  });
  return has_any;
}

}  // namespace headrace::text
