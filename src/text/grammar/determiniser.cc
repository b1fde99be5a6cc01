#include "text/grammar/determiniser.h"

#include <algorithm>
#include <numeric>

namespace headrace::text {
namespace {

// Orders items by their `from`; items of state s are order[first[s]] to order[first[s + 1]].
template <class Item>
void group(const std::vector<Item>& items, std::size_t num_states,
           std::vector<std::uint32_t>& first, std::vector<std::uint32_t>& order) {
  first.assign(num_states + 1, 0);
  for (const Item& item : items) ++first[item.from + 1];
  std::partial_sum(first.begin(), first.end(), first.begin());
  std::vector<std::uint32_t> next(first.begin(), first.end() - 1);
  order.resize(items.size());
  for (std::size_t i = 0; i < items.size(); ++i)
    order[next[items[i].from]++] = static_cast<std::uint32_t>(i);
}

}  // namespace

Determiniser::Determiniser(const Nfa& nfa, const std::bitset<256>& alphabet)
    : nfa_(nfa), alphabet_(alphabet), is_marked_(nfa.num_states()) {
  group(nfa.edges(), nfa.num_states(), edges_of_, edge_order_);
  group(nfa.calls(), nfa.num_states(), calls_of_, call_order_);
  group(nfa.links(), nfa.num_states(), links_of_, link_order_);
  find_nullable();
}

void Determiniser::find_nullable() {
  is_nullable_.resize(nfa_.num_states());
  // Links and calls that may become nullable with a state.
  std::vector<std::vector<std::uint32_t>> links_to(nfa_.num_states()), calls_to(nfa_.num_states());
  for (std::uint32_t i = 0; i < nfa_.links().size(); ++i) links_to[nfa_.links()[i].to].push_back(i);
  for (std::uint32_t i = 0; i < nfa_.calls().size(); ++i) {
    calls_to[nfa_.calls()[i].to].push_back(i);
    calls_to[nfa_.start(nfa_.calls()[i].rule)].push_back(i);
  }
  std::vector<StateId> todo;
  const auto add = [&](StateId state) {
    if (is_nullable_[state]) return;
    is_nullable_[state] = true;
    todo.push_back(state);
  };
  for (const Nfa::Rule& rule : nfa_.rules()) add(rule.end);
  while (!todo.empty()) {
    const StateId state = todo.back();
    todo.pop_back();
    for (const std::uint32_t i : links_to[state]) add(nfa_.links()[i].from);
    for (const std::uint32_t i : calls_to[state]) {
      const Nfa::Call& call = nfa_.calls()[i];
      if (is_nullable_[call.to] && is_nullable_[nfa_.start(call.rule)]) add(call.from);
    }
  }
}

Determiniser::Subset Determiniser::closure(std::vector<StateId> states) {
  Subset all;
  if (num_elements_ > kMaxElements) return all;  // add_rule() reports it
  const auto add = [&](StateId state) {
    if (is_marked_[state]) return;
    is_marked_[state] = true;
    all.push_back(state);
  };
  for (const StateId state : states) add(state);
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::uint32_t k = links_of_[all[i]]; k < links_of_[all[i] + 1]; ++k)
      add(nfa_.links()[link_order_[k]].to);
    for (std::uint32_t k = calls_of_[all[i]]; k < calls_of_[all[i] + 1]; ++k) {
      const Nfa::Call& call = nfa_.calls()[call_order_[k]];
      if (is_nullable_[nfa_.start(call.rule)]) add(call.to);
    }
  }
  for (const StateId state : all) is_marked_[state] = false;
  std::ranges::sort(all);
  num_elements_ += all.size();
  return all;
}

NodeId Determiniser::intern(Subset subset) {
  const auto [found, is_new] =
      ids_.try_emplace(std::move(subset), static_cast<NodeId>(drafts_.size()));
  if (is_new) {
    drafts_.emplace_back();
    todo_.push_back(found);
  }
  return found->second;
}

void Determiniser::add_edges(NodeId node, const Subset& subset) {
  // Where the set of edges that apply changes.
  std::bitset<257> begins;
  std::vector<Nfa::Edge> edges;
  for (const StateId state : subset)
    for (std::uint32_t k = edges_of_[state]; k < edges_of_[state + 1]; ++k) {
      edges.push_back(nfa_.edges()[edge_order_[k]]);
      begins.set(edges.back().low);
      begins.set(edges.back().high + std::size_t{1});
    }
  if (edges.empty()) return;
  for (std::size_t byte = 1; byte < 256; ++byte)
    if (alphabet_[byte] != alphabet_[byte - 1]) begins.set(byte);
  for (std::size_t low = 0; low < 256;) {
    std::size_t high = low + 1;
    while (high < 256 && !begins[high]) ++high;
    std::vector<StateId> targets;
    num_steps_ += edges.size();
    if (alphabet_[low])
      for (const Nfa::Edge& edge : edges)
        if (edge.low <= low && low <= edge.high) targets.push_back(edge.to);
    if (!targets.empty()) {
      const NodeId to = intern(closure(std::move(targets)));
      drafts_[node].edges.push_back(
          {static_cast<std::uint8_t>(low), static_cast<std::uint8_t>(high - 1), to});
    }
    low = high;
  }
}

void Determiniser::add_calls(NodeId node, const Subset& subset) {
  std::map<RuleId, std::vector<StateId>> targets;
  for (const StateId state : subset)
    for (std::uint32_t k = calls_of_[state]; k < calls_of_[state + 1]; ++k) {
      const Nfa::Call& call = nfa_.calls()[call_order_[k]];
      targets[call.rule].push_back(call.to);
    }
  for (auto& [rule, states] : targets) {
    const NodeId to = intern(closure(std::move(states)));
    drafts_[node].calls.emplace_back(rule, to);
  }
}

Status Determiniser::add_rule(RuleId rule, NodeId& start) {
  ids_.clear();
  todo_.clear();
  start = intern(closure({nfa_.start(rule)}));
  for (std::size_t i = 0; i < todo_.size(); ++i) {
    const auto& [subset, node] = *todo_[i];
    // The empty text of a rule that is called is that of the bypass.
    drafts_[node].is_end =
        (node != start || rule == 0) && std::ranges::binary_search(subset, nfa_.end(rule));
    add_edges(node, subset);
    add_calls(node, subset);
    if (drafts_.size() > kMaxNodes || num_elements_ > kMaxElements || num_steps_ > kMaxSteps)
      return invalid_argument(
          "grammar: rule '{}' needs too many states: at most {} nodes in all; use smaller counts "
          "in repetitions, shorter lists or fewer alternatives that begin alike",
          nfa_.rules()[rule].name, kMaxNodes);
  }
  return std::nullopt;
}

std::vector<bool> Determiniser::productive(std::span<const NodeId> starts) const {
  std::vector<bool> is_productive(drafts_.size());
  std::vector<std::vector<NodeId>> users(drafts_.size());  // nodes that lead to a node
  std::vector<NodeId> todo;
  for (NodeId node = 0; node < drafts_.size(); ++node) {
    for (const Automaton::Edge& edge : drafts_[node].edges) users[edge.to].push_back(node);
    for (const auto& [rule, to] : drafts_[node].calls) {
      users[to].push_back(node);
      users[starts[rule]].push_back(node);
    }
    if (drafts_[node].is_end) todo.push_back(node);
  }
  const auto leads_to_end = [&](NodeId node) {
    const Draft& draft = drafts_[node];
    return draft.is_end ||
           std::ranges::any_of(draft.edges, [&](const auto& e) { return is_productive[e.to]; }) ||
           std::ranges::any_of(draft.calls, [&](const auto& call) {
             return is_productive[starts[call.first]] && is_productive[call.second];
           });
  };
  while (!todo.empty()) {
    const NodeId node = todo.back();
    todo.pop_back();
    if (is_productive[node] || !leads_to_end(node)) continue;
    is_productive[node] = true;
    todo.insert(todo.end(), users[node].begin(), users[node].end());
  }
  return is_productive;
}

Status Determiniser::run(Automaton& automaton, std::vector<NodeId>& starts) {
  starts.resize(nfa_.rules().size());
  for (RuleId rule = 0; rule < starts.size(); ++rule) HEADRACE_TRY(add_rule(rule, starts[rule]));
  const std::vector<bool> is_productive = productive(starts);
  for (const Draft& draft : drafts_) {
    Automaton::Node node{.first_edge = static_cast<std::uint32_t>(automaton.edges_.size()),
                         .first_call = static_cast<std::uint32_t>(automaton.calls_.size()),
                         .is_end = draft.is_end};
    for (const Automaton::Edge& edge : draft.edges)
      if (is_productive[edge.to]) automaton.edges_.push_back(edge);
    for (const auto& [rule, to] : draft.calls) {
      const Draft& after = drafts_[to];
      const bool is_tail = after.is_end && after.edges.empty() && after.calls.empty();
      if (is_productive[starts[rule]] && is_productive[to])
        automaton.calls_.push_back({starts[rule], to, is_tail});
    }
    node.num_edges = static_cast<std::uint32_t>(automaton.edges_.size()) - node.first_edge;
    node.num_calls = static_cast<std::uint32_t>(automaton.calls_.size()) - node.first_call;
    automaton.nodes_.push_back(node);
  }
  automaton.root_ = starts.front();
  if (!is_productive[automaton.root_])
    return invalid_argument(
        "grammar: no text matches it; every rule must end at some time, so give recursive rules an "
        "alternative without recursion");
  return std::nullopt;
}

}  // namespace headrace::text
