#include "text/grammar/nfa.h"

#include <algorithm>
#include <array>

namespace headrace::text {
namespace {

// Bytes of a code point in UTF-8.
struct Utf8 {
  std::array<std::uint8_t, 4> bytes;
  int size;
};

Utf8 utf8_of(char32_t c) {
  const auto continuation = [c](int shift) {
    return static_cast<std::uint8_t>(0x80 | (c >> shift & 0x3F));
  };
  const auto lead = [c](int mark, int shift) {
    return static_cast<std::uint8_t>(static_cast<char32_t>(mark) | c >> shift);
  };
  if (c < 0x80) return {{lead(0, 0)}, 1};
  if (c < 0x800) return {{lead(0xC0, 6), continuation(0)}, 2};
  if (c < 0x10000) return {{lead(0xE0, 12), continuation(6), continuation(0)}, 3};
  return {{lead(0xF0, 18), continuation(12), continuation(6), continuation(0)}, 4};
}

// Builds the byte sequences of a range of code points. Full continuation bytes before `to` are
// shared between ranges.
class Utf8Ranges {
 public:
  Utf8Ranges(Nfa& nfa, StateId from, StateId to) : nfa_(nfa), from_(from), tails_{to} {}

  void add(char32_t first, char32_t last) {
    for (const char32_t limit : {U'\x7F', U'\x7FF', U'\xFFFF'})
      if (first <= limit && last > limit) {
        add(first, limit);
        return add(limit + 1, last);
      }
    add(from_, utf8_of(first), utf8_of(last), 0);
  }

 private:
  // The state from which `n` arbitrary continuation bytes lead to the end.
  StateId tail(std::size_t n) {
    while (tails_.size() <= n) {
      const StateId state = nfa_.add_state();
      nfa_.bytes(state, tails_.back(), 0x80, 0xBF);
      tails_.push_back(state);
    }
    return tails_[n];
  }

  // Byte sequences of equal length between two bounds, from byte `i` on.
  void add(StateId from, const Utf8& first, const Utf8& last, int i) {
    const auto at = static_cast<std::size_t>(i);
    const int left = first.size - i - 1;
    const std::uint8_t low = first.bytes[at], high = last.bytes[at];
    bool has_low_rest = false, has_high_rest = false;
    for (auto k = at + 1; k < static_cast<std::size_t>(first.size); ++k) {
      has_low_rest |= first.bytes[k] != 0x80;
      has_high_rest |= last.bytes[k] != 0xBF;
    }
    if (!has_low_rest && !has_high_rest)
      return nfa_.bytes(from, tail(static_cast<std::size_t>(left)), low, high);
    if (low == high) {
      const StateId next = nfa_.add_state();
      nfa_.bytes(from, next, low, low);
      return add(next, first, last, i + 1);
    }
    Utf8 first_end = first, last_begin = last;
    for (auto k = at + 1; k < static_cast<std::size_t>(first.size); ++k) {
      first_end.bytes[k] = 0xBF;
      last_begin.bytes[k] = 0x80;
    }
    if (has_low_rest) add(from, first, first_end, i);
    if (has_high_rest) add(from, last_begin, last, i);
    const int middle_low = low + has_low_rest, middle_high = high - has_high_rest;
    if (middle_low <= middle_high)
      nfa_.bytes(from, tail(static_cast<std::size_t>(left)), static_cast<std::uint8_t>(middle_low),
                 static_cast<std::uint8_t>(middle_high));
  }

  Nfa& nfa_;
  StateId from_;
  std::vector<StateId> tails_;
};

}  // namespace

StateId Nfa::add_state() {
  if (num_states_ >= kMaxStates) return 0;
  return static_cast<StateId>(num_states_++);
}

RuleId Nfa::add_rule(std::string name) {
  const auto rule = static_cast<RuleId>(rules_.size());
  if (rules_.size() >= kMaxRules) return 0;
  const StateId start = add_state();
  rules_.push_back({std::move(name), start, add_state()});
  return rule;
}

void Nfa::literal(StateId from, StateId to, std::string_view text) {
  if (text.empty()) return link(from, to);
  for (std::size_t i = 0; i < text.size() && !is_full(); ++i) {
    const StateId next = i + 1 == text.size() ? to : add_state();
    const auto byte = static_cast<std::uint8_t>(text[i]);
    bytes(from, next, byte, byte);
    from = next;
  }
}

void Nfa::characters(StateId from, StateId to, const CodePoints& set) {
  Utf8Ranges ranges(*this, from, to);
  for (const CodePointRange& range : set) ranges.add(range.first, range.last);
}

void Nfa::repeat(StateId from, StateId to, std::int64_t min, std::int64_t max,
                 const Fragment& fragment) {
  const auto copy = [&] {
    const StateId next = add_state();
    fragment(from, next);
    from = next;
  };
  for (std::int64_t i = 0; i < min && !is_full(); ++i) copy();
  if (max == kUnbounded) {
    const StateId loop = add_state();
    link(from, loop);
    from = loop;
    copy();
    link(from, loop);
    return link(loop, to);
  }
  for (std::int64_t i = min; i < max && !is_full(); ++i) {
    link(from, to);
    copy();
  }
  link(from, to);
}

}  // namespace headrace::text
