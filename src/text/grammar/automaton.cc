#include "text/grammar/automaton.h"

#include <algorithm>
#include <numeric>

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
  if (Status bad = automaton.check_left_recursion(nfa, starts)) return std::move(*bad);
  return automaton;
}

// A rule that can call itself before any byte would push return nodes without end.
Status Automaton::check_left_recursion(const Nfa& nfa, std::span<const NodeId> starts) const {
  const std::size_t num_rules = starts.size();
  std::vector<std::int64_t> rule_of(nodes_.size(), -1);  // by start node
  for (std::size_t rule = 0; rule < num_rules; ++rule)
    rule_of[starts[rule]] = static_cast<std::int64_t>(rule);
  std::vector<bool> is_nullable(num_rules);
  // The rules that a rule calls before any byte; whether it matches the empty text.
  const auto left_calls = [&](std::size_t rule, bool& matches_empty) {
    std::vector<std::size_t> called;
    std::vector<NodeId> reached = {starts[rule]};
    for (std::size_t i = 0; i < reached.size(); ++i) {
      matches_empty |= is_end(reached[i]);
      for (const Call& call : calls(reached[i])) {
        const auto callee = static_cast<std::size_t>(rule_of[call.start]);
        called.push_back(callee);
        if (is_nullable[callee] && std::ranges::find(reached, call.to) == reached.end())
          reached.push_back(call.to);
      }
    }
    return called;
  };
  std::vector<std::vector<std::size_t>> callees(num_rules), callers(num_rules);
  std::vector<std::size_t> todo(num_rules);
  std::iota(todo.rbegin(), todo.rend(), std::size_t{0});
  while (!todo.empty()) {
    const std::size_t rule = todo.back();
    todo.pop_back();
    bool matches_empty = false;
    callees[rule] = left_calls(rule, matches_empty);
    for (const std::size_t callee : callees[rule]) callers[callee].push_back(rule);
    if (!matches_empty || is_nullable[rule]) continue;
    is_nullable[rule] = true;
    todo.insert(todo.end(), callers[rule].begin(), callers[rule].end());
  }
  // Rules all of whose callees are done are done; a cycle leaves some.
  std::vector<std::size_t> num_open(num_rules), done;
  callers.assign(num_rules, {});
  for (std::size_t rule = 0; rule < num_rules; ++rule) {
    num_open[rule] = callees[rule].size();
    for (const std::size_t callee : callees[rule]) callers[callee].push_back(rule);
    if (num_open[rule] == 0) done.push_back(rule);
  }
  for (std::size_t i = 0; i < done.size(); ++i)
    for (const std::size_t caller : callers[done[i]])
      if (--num_open[caller] == 0) done.push_back(caller);
  if (done.size() == num_rules) return std::nullopt;
  const auto cyclic = std::ranges::find_if(num_open, [](std::size_t n) { return n != 0; });
  return invalid_argument(
      "grammar: rule '{}' refers to itself, directly or through others, before any text (left "
      "recursion); put text before it: list ::= item list?, or a $ref inside an object or array",
      nfa.rules()[static_cast<std::size_t>(cyclic - num_open.begin())].name);
}

}  // namespace headrace::text
