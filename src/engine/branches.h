// Continuations of a session's sequence that are computed together: samples or beams. Forks share
// the pages of what they have in common.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/session.h"

namespace headrace::engine {

inline constexpr std::int64_t kMaxBranches = 1024;
// A session of codes has a recent page for each of them, in both of two groups.
inline constexpr std::int64_t kMaxBranchesWithCodes = 32;

// The session must outlive the branches and is unchanged by them.
class Branches {
 public:
  // At most `num_branches` at a time, each with up to max_new_tokens tokens (0: until the session
  // is full). `name` is the argument that num_branches came from. invalid_argument: num_branches is
  // out of range, or the session has no logits. out_of_memory: pages are missing.
  static Result<Branches> make(Session& session, const char* name, std::int64_t num_branches,
                               std::int64_t max_new_tokens);
  ~Branches() { release(); }
  Branches(Branches&& other) noexcept
      : session_(std::exchange(other.session_, nullptr)),
        sequences_(std::move(other.sequences_)),
        logits_(std::move(other.logits_)) {}
  Branches& operator=(Branches&&) = delete;

  // One step: branch i becomes that of parents[i] with tokens[i] appended. At first, branch 0 is
  // the session's sequence.
  Status advance(std::span<const std::size_t> parents, std::span<const std::int32_t> tokens);
  // Of the last token of a branch.
  std::span<const float> logits(std::size_t branch) const;

 private:
  Branches(Session& session, Buffer logits) : session_(&session), logits_(std::move(logits)) {}
  Status fork(std::span<const std::size_t> parents);
  void release();

  Session* session_;
  std::vector<std::int64_t> sequences_;  // in the cache; empty before the first step
  Buffer logits_;                        // float [num_branches, vocab_size]
};

}  // namespace headrace::engine
