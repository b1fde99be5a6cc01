// Byte-pair encoding of one piece of text (Sennrich, Haddow, Birch 2016; over bytes: GPT-2, 2019).
// The adjacent pair with the lowest merge rank merges first, ties from left to right.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "text/token_index.h"

namespace headrace::text {

class Bpe {
 public:
  explicit Bpe(const MergeIndex& merges) : merges_(merges) {}

  // Merges `tokens`, one per byte, and appends the result. O(n log n).
  void merge(std::span<const TokenId> tokens, std::vector<TokenId>& merged);

 private:
  struct Symbol {
    TokenId token;  // -1: merged into an earlier symbol
    std::uint32_t prev, next;
  };
  struct Candidate {
    std::int32_t rank;
    std::uint32_t at;  // of the left symbol
    TokenId left, right;
  };
  static bool later(const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  }
  bool find_candidate(std::uint32_t at, Candidate& candidate) const;
  void push_candidate(std::uint32_t at);
  void apply(const Candidate& candidate);

  const MergeIndex& merges_;
  // Reused across calls.
  std::vector<Symbol> symbols_;
  std::vector<Candidate> queue_;  // a heap
};

}  // namespace headrace::text
