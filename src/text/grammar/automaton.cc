#include "text/grammar/automaton.h"

#include <algorithm>

#include "text/grammar/determiniser.h"

namespace headrace::text {

Result<Automaton> Automaton::make(const Nfa& nfa, const std::bitset<256>& alphabet) {
  if (nfa.is_full())
    return invalid_argument(
        "grammar: exceeds {} states, {} rules or {} edges; use smaller counts in repetitions, or a "
        "simpler grammar",
        Nfa::kMaxStates, Nfa::kMaxRules, Nfa::kMaxEdges);
  Automaton automaton;
  std::vector<NodeId> starts;
  if (Status bad = Determiniser(nfa, alphabet).run(automaton, starts)) return std::move(*bad);
  if (Status bad = automaton.order_starts(nfa, starts)) return std::move(*bad);
  automaton.find_classes(starts);
  return automaton;
}

// A rule that can call itself before any byte would push return nodes without end. Writes the start
// nodes so that those that a rule calls before any byte come before it.
Status Automaton::order_starts(const Nfa& nfa, std::vector<NodeId>& starts) const {
  const std::size_t num_rules = starts.size();
  std::vector<std::size_t> rule_of(nodes_.size());  // by start node
  for (std::size_t rule = 0; rule < num_rules; ++rule) rule_of[starts[rule]] = rule;
  std::vector<std::size_t> num_open(num_rules), done;
  std::vector<std::vector<std::size_t>> callers(num_rules);
  for (std::size_t rule = 0; rule < num_rules; ++rule) {
    for (const Call& call : calls(starts[rule])) callers[rule_of[call.start]].push_back(rule);
    num_open[rule] = calls(starts[rule]).size();
    if (num_open[rule] == 0) done.push_back(rule);
  }
  for (std::size_t i = 0; i < done.size(); ++i)
    for (const std::size_t caller : callers[done[i]])
      if (--num_open[caller] == 0) done.push_back(caller);
  if (done.size() < num_rules) {
    const auto cyclic = std::ranges::find_if(num_open, [](std::size_t n) { return n != 0; });
    return invalid_argument(
        "grammar: rule '{}' refers to itself, directly or through others, before any text (left "
        "recursion); put text before it: list ::= item list?, or a $ref inside an object or array",
        nfa.rules()[static_cast<std::size_t>(cyclic - num_open.begin())].name);
  }
  std::vector<NodeId> ordered;
  for (const std::size_t rule : done) ordered.push_back(starts[rule]);
  starts = std::move(ordered);
  return std::nullopt;
}

// Level n tells nodes apart that differ within n bytes. A call takes a byte at least, so what
// follows it is of the level below.
void Automaton::find_classes(std::span<const NodeId> starts) {
  const auto mix = [](std::uint64_t hash, std::uint64_t value) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15U;
    return hash ^ hash >> 29;
  };
  std::vector<bool> is_start(nodes_.size());
  for (const NodeId start : starts) is_start[start] = true;
  std::vector<NodeId> order(starts.begin(), starts.end());
  for (NodeId node = 0; node < nodes_.size(); ++node)
    if (!is_start[node]) order.push_back(node);
  std::vector<std::uint64_t> below(nodes_.size());
  classes_.resize(nodes_.size());
  for (NodeId node = 0; node < nodes_.size(); ++node) classes_[node] = is_end(node);
  for (std::size_t level = 0; level < kClassBytes; ++level) {
    below.swap(classes_);
    for (const NodeId node : order) {
      std::uint64_t hash = is_end(node);
      for (const Edge& edge : edges(node))
        hash = mix(hash, below[edge.to] + (std::uint64_t{edge.low} << 8 | edge.high));
      for (const Call& call : calls(node))
        hash = mix(mix(hash, classes_[call.start]), below[call.to] + call.is_tail);
      classes_[node] = hash;
    }
  }
}

}  // namespace headrace::text
