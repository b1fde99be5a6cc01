#include "engine/branches.h"

#include <algorithm>

#include "base/math.h"

namespace headrace::engine {
namespace {

// Branches share the full pages of the session. None frees a page before the last step.
Status check_pages(const Session& session, const char* name, std::int64_t num_branches,
                   std::int64_t max_new_tokens) {
  const KvCache& cache = session.cache();
  const std::int64_t page_size = cache.options().page_size;
  const auto length = static_cast<std::int64_t>(session.tokens().size());
  // The last token is not appended.
  const std::int64_t room = session.max_tokens() - length;
  const std::int64_t num_new = max_new_tokens == 0 ? room : std::min(room, max_new_tokens - 1);
  const std::int64_t num_pages = ceil_div(length + num_new, page_size) - length / page_size;
  const std::int64_t num_needed = num_new == 0 ? 0 : num_branches * num_pages;
  const std::int64_t num_free = cache.allocator().num_free();
  if (num_needed <= num_free) return std::nullopt;
  return Failure{
      ErrorCode::out_of_memory,
      format_text("{}={}: {} tokens after {} need {} pages, and {} of {} are free; pass "
                  "a smaller max_new_tokens or create the session with num_pages={}",
                  name, num_branches, num_new, length, num_needed, num_free,
                  cache.options().num_pages, cache.options().num_pages + num_needed - num_free)};
}

}  // namespace

Result<Branches> Branches::make(Session& session, const char* name, std::int64_t num_branches,
                                std::int64_t max_new_tokens) {
  const bool has_codes = session.cache().has_codes();
  const std::int64_t most = has_codes ? kMaxBranchesWithCodes : kMaxBranches;
  if (num_branches < 1 || num_branches > most)
    return invalid_argument("{}={}: must be 1 to {}{}; pass fewer, or call again for more", name,
                            num_branches, most, has_codes ? " with quantised keys or values" : "");
  if (session.logits() == nullptr)
    return invalid_argument("session: there are no logits; append tokens first");
  if (auto bad = check_pages(session, name, num_branches, max_new_tokens)) return std::move(*bad);
  const auto vocab_size = static_cast<std::size_t>(session.decoder().config.vocab_size);
  Buffer logits = session.runner().device().allocate_host(static_cast<std::size_t>(num_branches) *
                                                          vocab_size * sizeof(float));
  if (logits.data() == nullptr)
    return Failure{ErrorCode::out_of_memory,
                   format_text("{}={}: no memory for the logits of as many tokens; pass fewer",
                               name, num_branches)};
  return Branches(session, std::move(logits));
}

Status Branches::advance(std::span<const std::size_t> parents,
                         std::span<const std::int32_t> tokens) {
  HEADRACE_TRY(fork(parents));
  std::vector<ModelRunner::Part> parts;
  for (std::size_t i = 0; i < tokens.size(); ++i)
    parts.push_back(
        {.sequence = sequences_[i], .tokens = tokens.subspan(i, 1), .num_generated = 1});
  return session_->runner().step(parts, logits_.as<float>());
}

// The first child of a branch takes its sequence over, the others fork it.
Status Branches::fork(std::span<const std::size_t> parents) {
  KvCache& cache = session_->runner().cache();
  std::vector<std::int64_t> before = std::move(sequences_);
  std::vector<bool> is_taken(before.size(), false);
  sequences_.clear();
  Status failure;
  for (const std::size_t parent : parents) {
    const bool is_first_child = !before.empty() && !is_taken[parent];
    if (is_first_child) {
      is_taken[parent] = true;
      sequences_.push_back(before[parent]);
      continue;
    }
    Result<std::int64_t> fork = cache.fork(before.empty() ? session_->sequence() : before[parent]);
    if (!fork.ok()) {
      failure = std::move(fork.failure());
      break;
    }
    sequences_.push_back(fork.value());
  }
  for (std::size_t i = 0; i < before.size(); ++i)
    if (!is_taken[i]) static_cast<void>(cache.free(before[i]));
  return failure;
}

std::span<const float> Branches::logits(std::size_t branch) const {
  const auto vocab_size = static_cast<std::size_t>(session_->decoder().config.vocab_size);
  const float* first =
      sequences_.empty() ? session_->logits() : logits_.as<float>() + branch * vocab_size;
  return {first, vocab_size};
}

void Branches::release() {
  if (session_ == nullptr) return;
  for (const std::int64_t sequence : sequences_)
    static_cast<void>(session_->runner().cache().free(sequence));
  sequences_.clear();
}

}  // namespace headrace::engine
