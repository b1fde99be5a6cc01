// Subset construction: from an Nfa to an Automaton.
//
// A rule that matches the empty text is bypassed where it is called, so that a call takes at least
// one byte.
#pragma once

#include <bitset>
#include <map>
#include <vector>

#include "text/grammar/automaton.h"

namespace headrace::text {

class Determiniser {
 public:
  static constexpr std::size_t kMaxNodes = 100'000;
  // Bound memory and time: elements of all subsets; edges looked at for a range of bytes.
  static constexpr std::size_t kMaxElements = 2'000'000, kMaxSteps = 200'000'000;

  Determiniser(const Nfa& nfa, const std::bitset<256>& alphabet);

  // The start nodes of the rules, in automaton.nodes_. invalid_argument: a limit.
  Status run(Automaton& automaton, std::vector<NodeId>& starts);

 private:
  using Subset = std::vector<StateId>;  // sorted
  struct Draft {                        // a node
    std::vector<Automaton::Edge> edges;
    std::vector<std::pair<RuleId, NodeId>> calls;
    bool is_end = false;
  };

  Status add_rule(RuleId rule, NodeId& start);
  void expand(NodeId node, const Subset& subset, StateId end);
  NodeId intern(Subset subset);
  Subset closure(std::vector<StateId> states);
  void add_edges(NodeId node, const Subset& subset);
  void add_calls(NodeId node, const Subset& subset);
  // Finds the states from which the end of the rule can be reached without a byte.
  void find_nullable();
  // Nodes from which the end of the rule can be reached.
  std::vector<bool> productive(std::span<const NodeId> starts) const;

  const Nfa& nfa_;
  const std::bitset<256>& alphabet_;
  // Indices into the edges, calls and links of the Nfa, by state.
  std::vector<std::uint32_t> edges_of_, calls_of_, links_of_;
  std::vector<std::uint32_t> edge_order_, call_order_, link_order_;
  std::vector<bool> is_nullable_;  // by state
  std::vector<bool> is_marked_;    // by state, false between calls of closure()

  std::vector<Draft> drafts_;
  std::map<Subset, NodeId> ids_;                                // of the current rule
  std::vector<std::map<Subset, NodeId>::const_iterator> todo_;  // to expand
  std::size_t num_elements_ = 0, num_steps_ = 0;
};

}  // namespace headrace::text
