#include "text/grammar/configurations.h"

#include <algorithm>

namespace headrace::text {

std::size_t Configurations::Hash::operator()(const std::vector<Configuration>& set) const {
  std::uint64_t hash = set.size();
  for (const Configuration& c : set) {
    hash ^= (std::uint64_t{c.node} << 32) | c.stack;
    hash *= 0x9E3779B97F4A7C15U;
    hash ^= hash >> 29;
  }
  return hash;
}

Configurations::StackId Configurations::push(NodeId to, StackId below) {
  const auto [found, is_new] = stack_ids_.try_emplace((std::uint64_t{to} << 32) | below,
                                                      static_cast<StackId>(stacks_.size()));
  if (is_new) stacks_.push_back({to, below, stacks_[below].depth + 1});
  return found->second;
}

Configurations::SetId Configurations::intern(std::vector<Configuration> set) {
  std::ranges::sort(set);
  set.erase(std::unique(set.begin(), set.end()), set.end());
  if (set.empty()) return kNone;
  if (set.size() > kMaxPerSet || sets_.size() >= kMaxSets) return kTooLarge;
  const auto [found, is_new] = set_ids_.try_emplace(set, static_cast<SetId>(sets_.size()));
  if (!is_new) return found->second;
  Set made{.members = std::move(set), .active = {}, .next = {}, .can_end = false};
  made.next.fill(kUnknown);
  if (!expand(made)) return found->second = kTooLarge;
  sets_.push_back(std::move(made));
  return found->second;
}

bool Configurations::expand(Set& set) {
  std::vector<Configuration> reached = set.members;
  const auto reach = [&](Configuration c) {
    if (std::ranges::find(reached, c) == reached.end()) reached.push_back(c);
  };
  for (std::size_t i = 0; i < reached.size(); ++i) {
    const Configuration c = reached[i];
    if (reached.size() > kMaxPerSet || stacks_.size() > kMaxStacks ||
        stacks_[c.stack].depth > kMaxDepth)
      return false;
    if (!automaton_.edges(c.node).empty()) set.active.push_back(c);
    for (const Automaton::Call& call : automaton_.calls(c.node))
      reach({call.start, call.is_tail ? c.stack : push(call.to, c.stack)});
    if (!automaton_.is_end(c.node)) continue;
    if (c.stack == kBottom)
      set.can_end = true;
    else
      reach({top(c.stack), below(c.stack)});
  }
  return true;
}

Configurations::SetId Configurations::compute_next(SetId set, std::uint8_t byte) {
  std::vector<Configuration> members;
  for (const Configuration& c : sets_[static_cast<std::size_t>(set)].active)
    for (const Automaton::Edge& edge : automaton_.edges(c.node))
      if (edge.low <= byte && byte <= edge.high) members.push_back({edge.to, c.stack});
  const SetId next = intern(std::move(members));
  sets_[static_cast<std::size_t>(set)].next[byte] = next;
  return next;
}

}  // namespace headrace::text
