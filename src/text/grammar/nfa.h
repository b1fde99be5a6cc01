// A grammar before it is determinised: rules, each a nondeterministic automaton over bytes whose
// edges are byte ranges, calls of rules, or empty. The parsers of regular expressions, GBNF and
// JSON Schema build one.
//
// Thompson's construction: a fragment lies between two states, `from` and `to`. It adds no edge
// into `from` and none out of `to`, so fragments compose by sharing states.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/code_points.h"

namespace headrace::text {

using StateId = std::uint32_t;
using RuleId = std::uint32_t;

inline constexpr std::int64_t kUnbounded = -1;

class Nfa {
 public:
  static constexpr std::size_t kMaxStates = 200'000;
  static constexpr std::size_t kMaxRules = 10'000;
  static constexpr std::size_t kMaxEdges = 2'000'000;

  struct Edge {
    StateId from, to;
    std::uint8_t low, high;
  };
  struct Call {
    StateId from, to;
    RuleId rule;
  };
  struct Link {
    StateId from, to;
  };
  struct Rule {
    std::string name;  // for messages
    StateId start, end;
  };

  // The first rule is the root.
  RuleId add_rule(std::string name);
  const std::vector<Rule>& rules() const { return rules_; }
  StateId start(RuleId rule) const { return rules_[rule].start; }
  StateId end(RuleId rule) const { return rules_[rule].end; }

  // Past a limit nothing is added; the caller reports is_full().
  StateId add_state();
  bool is_full() const {
    return num_states_ >= kMaxStates || rules_.size() >= kMaxRules ||
           edges_.size() + calls_.size() + links_.size() >= kMaxEdges;
  }

  void link(StateId from, StateId to) { links_.push_back({from, to}); }
  void call(StateId from, StateId to, RuleId rule) { calls_.push_back({from, to, rule}); }
  void bytes(StateId from, StateId to, std::uint8_t low, std::uint8_t high) {
    edges_.push_back({from, to, low, high});
  }
  void literal(StateId from, StateId to, std::string_view text);
  // One character of a class, in UTF-8.
  void characters(StateId from, StateId to, const CodePoints& set);
  // Between `min` and `max` copies of what `fragment` builds; max may be kUnbounded.
  using Fragment = std::function<void(StateId from, StateId to)>;
  void repeat(StateId from, StateId to, std::int64_t min, std::int64_t max,
              const Fragment& fragment);

  std::size_t num_states() const { return num_states_; }
  const std::vector<Edge>& edges() const { return edges_; }
  const std::vector<Call>& calls() const { return calls_; }
  const std::vector<Link>& links() const { return links_; }

 private:
  std::size_t num_states_ = 0;
  std::vector<Rule> rules_;
  std::vector<Edge> edges_;
  std::vector<Call> calls_;
  std::vector<Link> links_;
};

}  // namespace headrace::text
