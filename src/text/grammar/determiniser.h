// Subset construction: from an Nfa to an Automaton.
#pragma once

#include <bitset>
#include <map>
#include <vector>

#include "text/grammar/automaton.h"

namespace headrace::text {

class Determiniser {
 public:
  static constexpr std::size_t kMaxNodes = 100'000;
  // Elements of all subsets, which bounds time and memory.
  static constexpr std::size_t kMaxElements = 4'000'000;

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
  // Nodes from which the end of the rule can be reached.
  std::vector<bool> productive(std::span<const NodeId> starts) const;

  const Nfa& nfa_;
  const std::bitset<256>& alphabet_;
  // Indices into the edges, calls and links of the Nfa, by state.
  std::vector<std::uint32_t> edges_of_, calls_of_, links_of_;
  std::vector<std::uint32_t> edge_order_, call_order_, link_order_;
  std::vector<bool> is_marked_;  // by state, false between calls of closure()

  std::vector<Draft> drafts_;
  std::map<Subset, NodeId> ids_;                                // of the current rule
  std::vector<std::map<Subset, NodeId>::const_iterator> todo_;  // to expand
  std::size_t num_elements_ = 0;
};

}  // namespace headrace::text
