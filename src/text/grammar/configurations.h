// The configurations of an Automaton after a text, as interned sets: equal sets have equal ids, and
// the successor of a set by a byte is computed once.
//
// A stack is an id too: (return node, stack below). Both tables grow as texts are walked;
// is_large() tells when to start anew with a fresh object.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "text/grammar/automaton.h"

namespace headrace::text {

class Configurations {
 public:
  using SetId = std::int32_t;
  using StackId = std::uint32_t;
  static constexpr SetId kNone = -1;      // the text is not a prefix of a match
  static constexpr SetId kTooLarge = -2;  // a limit of one set, or of the stacks
  static constexpr StackId kBottom = 0;
  static constexpr std::size_t kMaxPerSet = 512;
  static constexpr std::uint32_t kMaxDepth = 1024;  // of stacks
  static constexpr std::size_t kMaxSets = 50'000, kLargeSets = 4'000;
  static constexpr std::size_t kMaxStacks = 1'000'000, kLargeStacks = 200'000;

  struct Configuration {
    NodeId node;
    StackId stack;
    auto operator<=>(const Configuration&) const = default;
  };

  explicit Configurations(const Automaton& automaton) : automaton_(automaton) {
    stacks_.push_back({0, 0, 0});
  }

  // kTooLarge: a limit. kNone: no configurations.
  SetId intern(std::vector<Configuration> set);
  // kNone, kTooLarge.
  SetId next(SetId set, std::uint8_t byte) {
    const SetId known = sets_[static_cast<std::size_t>(set)].next[byte];
    return known == kUnknown ? compute_next(set, byte) : known;
  }
  const std::vector<Configuration>& members(SetId set) const {
    return sets_[static_cast<std::size_t>(set)].members;
  }
  // Whether the text may end here: a member can return from the bottom of its stack.
  bool can_end(SetId set) const { return sets_[static_cast<std::size_t>(set)].can_end; }
  bool can_continue(SetId set) const {
    return !sets_[static_cast<std::size_t>(set)].active.empty();
  }

  StackId push(NodeId to, StackId below);
  NodeId top(StackId stack) const { return stacks_[stack].to; }
  StackId below(StackId stack) const { return stacks_[stack].below; }

  bool is_large() const { return sets_.size() > kLargeSets || stacks_.size() > kLargeStacks; }

 private:
  static constexpr SetId kUnknown = -3;
  struct Set {
    std::vector<Configuration> members;  // after the last byte; sorted
    std::vector<Configuration> active;   // that they lead to without a byte, and that have edges
    std::array<SetId, 256> next;
    bool can_end;
  };
  struct Stack {
    NodeId to;
    StackId below;
    std::uint32_t depth;
  };
  struct Hash {
    std::size_t operator()(const std::vector<Configuration>& set) const;
  };

  SetId compute_next(SetId set, std::uint8_t byte);
  // Follows calls and returns. False: a limit.
  bool expand(Set& set);

  const Automaton& automaton_;
  std::vector<Stack> stacks_;
  std::unordered_map<std::uint64_t, StackId> stack_ids_;
  std::vector<Set> sets_;
  std::unordered_map<std::vector<Configuration>, SetId, Hash> set_ids_;
};

}  // namespace headrace::text
