// A compiled grammar: a pushdown automaton over bytes. Each rule is a deterministic automaton whose
// edges are byte ranges and calls of rules; a configuration is a node and a stack of return nodes.
//
// From every node some text leads to the end of its rule, so a text that has configurations can
// always be completed.
#pragma once

#include <bitset>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "text/grammar/nfa.h"

namespace headrace::text {

using NodeId = std::uint32_t;

class Automaton {
 public:
  struct Edge {
    std::uint8_t low, high;
    NodeId to;
  };
  struct Call {
    NodeId start;  // of the rule
    NodeId to;     // after it
    bool is_tail;  // nothing follows `to`: the call pushes nothing
  };

  // Bytes that no token has are left out, so that no text needs them. invalid_argument: left
  // recursion, a grammar that matches no text, or one that exceeds a limit.
  static Result<Automaton> make(const Nfa& nfa, const std::bitset<256>& alphabet);

  NodeId root() const { return root_; }
  std::size_t num_nodes() const { return nodes_.size(); }
  // Sorted, disjoint.
  std::span<const Edge> edges(NodeId node) const {
    return std::span(edges_).subspan(nodes_[node].first_edge, nodes_[node].num_edges);
  }
  std::span<const Call> calls(NodeId node) const {
    return std::span(calls_).subspan(nodes_[node].first_call, nodes_[node].num_calls);
  }
  bool is_end(NodeId node) const { return nodes_[node].is_end; }  // of its rule
  // Nodes of equal classes (hashes) match the same texts of up to kClassBytes bytes, within their
  // rules.
  static constexpr std::size_t kClassBytes = 24;
  std::uint64_t class_of(NodeId node) const { return classes_[node]; }

 private:
  friend class Determiniser;
  struct Node {
    std::uint32_t first_edge = 0, num_edges = 0, first_call = 0, num_calls = 0;
    bool is_end = false;
  };

  // invalid_argument: left recursion.
  Status order_starts(const Nfa& nfa, std::vector<NodeId>& starts) const;
  void find_classes(std::span<const NodeId> starts);

  NodeId root_ = 0;
  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::vector<Call> calls_;
  std::vector<std::uint64_t> classes_;  // by node
};

}  // namespace headrace::text
