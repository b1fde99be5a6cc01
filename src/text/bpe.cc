#include "text/bpe.h"

#include <algorithm>
#include <limits>

namespace headrace::text {
namespace {

constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

}  // namespace

bool Bpe::find_candidate(std::uint32_t at, Candidate& candidate) const {
  const std::uint32_t next = symbols_[at].next;
  if (next == kNone) return false;
  const Merge* merge = merges_.find(symbols_[at].token, symbols_[next].token);
  if (merge == nullptr) return false;
  candidate = {merge->rank, at, merge->left, merge->right};
  return true;
}

void Bpe::push_candidate(std::uint32_t at) {
  Candidate candidate;
  if (at == kNone || !find_candidate(at, candidate)) return;
  queue_.push_back(candidate);
  std::push_heap(queue_.begin(), queue_.end(), later);
}

void Bpe::apply(const Candidate& candidate) {
  Symbol& left = symbols_[candidate.at];
  // A stale candidate: every merge changes the token of its left symbol.
  if (left.token != candidate.left || left.next == kNone) return;
  Symbol& right = symbols_[left.next];
  if (right.token != candidate.right) return;
  left.token = merges_.find(candidate.left, candidate.right)->result;
  right.token = -1;
  left.next = right.next;
  if (left.next != kNone) symbols_[left.next].prev = candidate.at;
  push_candidate(left.prev);
  push_candidate(candidate.at);
}

void Bpe::merge(std::span<const TokenId> tokens, std::vector<TokenId>& merged) {
  const auto count = static_cast<std::uint32_t>(tokens.size());
  symbols_.clear();
  for (std::uint32_t i = 0; i < count; ++i)
    symbols_.push_back({tokens[i], i == 0 ? kNone : i - 1, i + 1 == count ? kNone : i + 1});
  queue_.clear();
  for (std::uint32_t i = 0; i < count; ++i) {
    Candidate candidate;
    if (find_candidate(i, candidate)) queue_.push_back(candidate);
  }
  std::make_heap(queue_.begin(), queue_.end(), later);
  while (!queue_.empty()) {
    const Candidate candidate = queue_.front();
    std::pop_heap(queue_.begin(), queue_.end(), later);
    queue_.pop_back();
    apply(candidate);
  }
  for (std::uint32_t i = 0; count != 0 && i != kNone; i = symbols_[i].next)
    merged.push_back(symbols_[i].token);
}

}  // namespace headrace::text
