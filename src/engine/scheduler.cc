#include "engine/scheduler.h"

#include <algorithm>
#include <iterator>

#include "base/math.h"

namespace headrace::engine {
namespace {

// Added to the key of a generated token: above every id of a vocabulary.
constexpr std::int32_t kGenerated = 1 << 30;

constexpr int kLengthBits = 8;  // of a short prompt, in the salt of the cache

Status check_at_least(const char* name, std::int64_t value, std::int64_t low, const char* remedy) {
  if (value >= low) return std::nullopt;
  return invalid_argument("{}={}: must be at least {}; {}", name, value, low, remedy);
}

Status check_options(const KvCacheOptions& cache, const SchedulerOptions& o) {
  HEADRACE_TRY(Scheduler::check_num_seqs(o.max_num_seqs, o.max_batch_tokens));
  HEADRACE_TRY(check_at_least("watermark_pages", o.watermark_pages, 0, "pass 0 for none"));
  HEADRACE_TRY(check_at_least("max_age_steps", o.max_age_steps, 1, "pass a number of steps"));
  HEADRACE_TRY(check_at_least("min_chunk", o.min_chunk, 1, "pass 1 for chunks of any size"));
  if (o.min_chunk > std::int64_t{1} << kLengthBits)
    return invalid_argument("min_chunk={}: must be at most {}; pass less", o.min_chunk,
                            std::int64_t{1} << kLengthBits);
  HEADRACE_TRY(check_at_least("max_length", o.max_length, 1, "pass the context length"));
  // Beside all other sequences, which decode, a prompt still advances.
  const std::int64_t least = o.max_num_seqs - 1 + least_prompt_tokens(o.min_chunk);
  if (o.max_batch_tokens < least)
    return invalid_argument(
        "max_batch_tokens={}: must be at least {}: a token of each of max_num_seqs={} sequences "
        "and a chunk of a prompt; pass more, or a smaller max_num_seqs",
        o.max_batch_tokens, least, o.max_num_seqs);
  HEADRACE_TRY(check_at_least("prompt_tile", o.prompt_tile, 0, "pass 0 for steps of any size"));
  if (o.max_prompt_tokens != 0)
    HEADRACE_TRY(check_at_least("max_prompt_tokens", o.max_prompt_tokens,
                                least_prompt_tokens(o.min_chunk),
                                "pass more, so that every prompt advances, or 0"));
  const std::int64_t num_pages = ceil_div(o.max_length, cache.page_size);
  if (num_pages > cache.num_pages)
    return invalid_argument(
        "num_pages={}: must be at least {}, the pages of a sequence of {} tokens; pass more pages "
        "or a smaller context",
        cache.num_pages, num_pages, o.max_length);
  return std::nullopt;
}

}  // namespace

Status Scheduler::check_num_seqs(std::int64_t max_num_seqs, std::int64_t max_batch_tokens) {
  if (max_num_seqs >= 1 && max_num_seqs <= max_batch_tokens) return std::nullopt;
  return invalid_argument(
      "max_num_seqs={}: must be 1 to max_batch_tokens={}: a step computes a token of each "
      "sequence; pass fewer",
      max_num_seqs, max_batch_tokens);
}

Result<Scheduler> Scheduler::make(KvCache& cache, const SchedulerOptions& options) {
  if (Status bad = check_options(cache.options(), options)) return std::move(*bad);
  return Scheduler(cache, options);
}

// ---- sequences ----

Scheduler::Sequence& Scheduler::insert(Sequence sequence) {
  const std::int64_t id = sequence.id;
  Sequence& s = *sequences_.set(id, std::make_unique<Sequence>(std::move(sequence)));
  if (s.state == SequenceState::running)
    running_.insert(&s);
  else
    waiting_.insert(&s);
  deadlines_.push_back({id, step_ + options_.max_age_steps});
  return s;
}

std::int64_t Scheduler::add(std::vector<std::int32_t> prompt, std::int64_t priority,
                            std::int64_t cache_salt, bool has_gang) {
  const std::int64_t id = ++last_id_;
  const auto num_prompt = static_cast<std::int64_t>(prompt.size());
  insert({.id = id,
          .arrival = id,
          .priority = priority,
          .cache_salt = cache_salt,
          .gang = has_gang ? id : 0,
          .tokens = std::move(prompt),
          .num_prompt = num_prompt});
  return id;
}

Result<std::int64_t> Scheduler::fork(std::int64_t id) {
  Sequence fork = *sequences_.at(id);
  fork.id = last_id_ + 1;
  if (std::ssize(running_) < options_.max_num_seqs) {
    Result<std::int64_t> forked = cache_->fork(fork.cache_sequence);
    if (!forked.ok()) return forked;
    fork.cache_sequence = forked.value();
  } else {
    // A member of a gang has started with the others.
    fork.state = fork.gang == 0 ? SequenceState::waiting : SequenceState::preempted;
    fork.num_computed = 0;
    if (fork.gang != 0) split_.push_back(fork.id);
  }
  last_id_ = fork.id;
  return insert(std::move(fork)).id;
}

void Scheduler::append(std::int64_t id, std::int32_t token) {
  sequences_.at(id)->tokens.push_back(token);
}

void Scheduler::replace_last(std::int64_t id, std::int32_t token) {
  sequences_.at(id)->tokens.back() = token;
}

Status Scheduler::finish(std::int64_t id) {
  Sequence& s = *sequences_.at(id);
  const bool has_pages = s.state == SequenceState::running || s.is_swapped;
  const Status bad = has_pages ? cache_->free(s.cache_sequence) : std::nullopt;
  if (s.state == SequenceState::running)
    running_.erase(&s);
  else
    waiting_.erase(&s);
  sequences_.erase(id);
  return bad;
}

void Scheduler::clear() noexcept {
  waiting_.clear();
  running_.clear();
  sequences_.clear();
  deadlines_.clear();
  chunks_.clear();
  split_.clear();
}

SequenceState Scheduler::state(std::int64_t id) const {
  const auto* const found = sequences_.find(id);
  return found == nullptr ? SequenceState::finished : (*found)->state;
}

Scheduler::Tokens Scheduler::tokens(std::int64_t id) const {
  const Sequence& s = *sequences_.at(id);
  const auto all = std::span(s.tokens);
  const auto num_prompt = static_cast<std::size_t>(s.num_prompt);
  return {all.first(num_prompt), all.subspan(num_prompt), s.num_cached};
}

SchedulerStats Scheduler::stats() const {
  const std::int64_t num_preempted = std::ranges::count_if(
      waiting_, [](const Sequence* s) { return s->state == SequenceState::preempted; });
  return {.num_waiting = std::ssize(waiting_) - num_preempted,
          .num_running = std::ssize(running_),
          .num_preempted = num_preempted,
          .num_steps = step_,
          .num_scheduled_tokens = num_scheduled_tokens_,
          .num_preemptions = num_preemptions_,
          .num_prompt_tokens = num_prompt_tokens_,
          .num_cached_tokens = num_cached_tokens_};
}

// ---- a step ----

// A token takes a page at most, behind the others or as the copy of a shared one. Chunks of prompts
// take pages in caches of codes alone.
bool Scheduler::has_pages_for_all() const {
  std::int64_t num_pages = std::ssize(running_);
  for (const Sequence* s : running_)
    if (cache_->has_codes()) num_pages += ceil_div(s->num_left(), cache_->options().page_size);
  return split_.empty() && num_pages <= cache_->allocator().num_free();
}

Status Scheduler::schedule() {
  chunks_.clear();
  budget_ = options_.max_batch_tokens;
  has_preempted_ = false;
  promote_overdue();
  HEADRACE_TRY(preempt_split_gangs());
  HEADRACE_TRY(schedule_decodes());
  if (!chunks_.empty()) budget_ = prompt_budget();
  HEADRACE_TRY(schedule_prefills());
  HEADRACE_TRY(admit());
  if (!chunks_.empty()) ++step_;
  for (const Chunk& chunk : chunks_) num_scheduled_tokens_ += std::ssize(chunk.tokens);
  return std::nullopt;
}

void Scheduler::promote_overdue() {
  for (; !deadlines_.empty() && deadlines_.front().step <= step_; deadlines_.pop_front()) {
    const auto* const found = sequences_.find(deadlines_.front().id);
    if (found == nullptr) continue;
    Sequence& s = **found;
    const auto move_up = [&](auto& ranked) {
      ranked.erase(&s);
      s.is_overdue = true;
      ranked.insert(&s);
    };
    s.state == SequenceState::running ? move_up(running_) : move_up(waiting_);
  }
}

Status Scheduler::preempt_split_gangs() {
  for (const std::int64_t id : split_) {
    const auto* const found = sequences_.find(id);
    if (found == nullptr) continue;
    for (Sequence* s : gang_of(running_, **found)) HEADRACE_TRY(preempt_alone(*s));
  }
  split_.clear();
  return std::nullopt;
}

// In their order.
template <class Ranked>
std::vector<Scheduler::Sequence*> Scheduler::gang_of(const Ranked& ranked, Sequence& s) {
  if (s.gang == 0) return {&s};
  std::vector<Sequence*> gang;
  for (Sequence* other : ranked)
    if (other->gang == s.gang) gang.push_back(other);
  return gang;
}

Status Scheduler::schedule_decodes() {
  const std::vector<Sequence*> order(running_.begin(), running_.end());
  for (Sequence* s : order) {
    if (s->num_left() == 1 && s->state == SequenceState::running)
      HEADRACE_TRY(reserve_chunk(*s, 1));
  }
  return std::nullopt;
}

// Tokens of prompts beside the decodes that are scheduled. Enough that a prompt advances.
std::int64_t Scheduler::prompt_budget() const {
  const std::int64_t most =
      options_.max_prompt_tokens > 0 ? std::min(budget_, options_.max_prompt_tokens) : budget_;
  if (options_.prompt_tile == 0) return most;
  const std::int64_t quarter = ceil_div(num_prompt_tokens_left(4 * most), std::int64_t{4});
  const std::int64_t num_decodes = options_.max_batch_tokens - budget_;
  const std::int64_t num_tokens =
      num_decodes + std::max(quarter, least_prompt_tokens(options_.min_chunk));
  return std::min(most, round_up(num_tokens, options_.prompt_tile) - num_decodes);
}

// Of sequences that run, and of those that are next; counted no further than to `most`.
std::int64_t Scheduler::num_prompt_tokens_left(std::int64_t most) const {
  std::int64_t num_tokens = 0;
  for (const Sequence* s : running_)
    if (s->num_left() > 1) num_tokens += s->num_left();
  std::int64_t num_free = options_.max_num_seqs - std::ssize(running_);
  for (auto next = waiting_.begin(); next != waiting_.end() && num_free > 0 && num_tokens < most;
       ++next, --num_free)
    num_tokens += (*next)->num_left();
  return std::min(num_tokens, most);
}

Status Scheduler::schedule_prefills() {
  const std::vector<Sequence*> order(running_.begin(), running_.end());
  for (Sequence* s : order)
    if (s->num_left() > 1 && s->state == SequenceState::running) HEADRACE_TRY(add_prefill(*s));
  return std::nullopt;
}

// The pages of prompts are reserved since their admission, those of codes for each chunk.
Status Scheduler::add_prefill(Sequence& s) {
  const std::int64_t num_tokens = chunk_size(s, s.num_computed);
  if (cache_->has_codes() && num_tokens > 0) return reserve_chunk(s, num_tokens);
  add_chunk(s, num_tokens);
  return std::nullopt;
}

// If pages are missing, those that run last give theirs, at the end the sequence its own.
Status Scheduler::reserve_chunk(Sequence& s, std::int64_t num_tokens) {
  while (s.state == SequenceState::running) {
    Status full = cache_->reserve(s.cache_sequence, num_tokens, options_.stream);
    if (!full) {
      add_chunk(s, num_tokens);
      break;
    }
    if (full->code != ErrorCode::out_of_memory) return full;
    HEADRACE_TRY(preempt(**std::prev(running_.end())));
  }
  return std::nullopt;
}

Status Scheduler::admit() {
  // What was preempted waits at least a step, unless nothing else runs.
  while ((!has_preempted_ || chunks_.empty()) && !waiting_.empty() &&
         std::ssize(running_) < options_.max_num_seqs) {
    const std::vector<Sequence*> next = gang_of(waiting_, **waiting_.begin());
    Result<bool> started = start_all(next);
    if (!started.ok()) return std::move(started.failure());
    // Others do not overtake it.
    if (!started.value()) break;
    for (Sequence* s : next) {
      waiting_.erase(s);
      s->state = SequenceState::running;
      running_.insert(s);
    }
    for (Sequence* s : next)
      if (s->state == SequenceState::running) HEADRACE_TRY(add_prefill(*s));
  }
  return std::nullopt;
}

Status Scheduler::preempt(Sequence& s) {
  for (Sequence* member : gang_of(running_, s)) {
    // It may have a chunk of this step, which the step does not compute then.
    std::erase_if(chunks_, [&](const Chunk& chunk) {
      if (chunk.id != member->id) return false;
      budget_ += std::ssize(chunk.tokens);
      return true;
    });
    HEADRACE_TRY(preempt_alone(*member));
  }
  return std::nullopt;
}

Status Scheduler::preempt_alone(Sequence& s) {
  // Only sequences that need no other one are swapped.
  Status swapped = cache_->options().num_host_pages > 0 && s.gang == 0
                       ? cache_->swap_out(s.cache_sequence, options_.stream)
                       : Failure{ErrorCode::out_of_memory, {}};
  if (swapped && swapped->code != ErrorCode::out_of_memory) return swapped;
  s.is_swapped = !swapped;
  if (!s.is_swapped) {
    HEADRACE_TRY(cache_->free(s.cache_sequence));
    s.num_computed = 0;
  }
  running_.erase(&s);
  s.state = SequenceState::preempted;
  waiting_.insert(&s);
  has_preempted_ = true;
  ++num_preemptions_;
  return std::nullopt;
}

// ---- admission ----

Result<bool> Scheduler::start_all(std::span<Sequence* const> sequences) {
  if (std::ssize(running_) + std::ssize(sequences) > options_.max_num_seqs) return false;
  num_started_pages_ = 0;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    Sequence& s = *sequences[i];
    Result<bool> started = s.is_swapped ? swap_in(s) : start(s, i == 0);
    if (started.ok() && started.value()) continue;
    for (Sequence* other : sequences.first(i)) {
      if (Status bad = cache_->free(other->cache_sequence)) return std::move(*bad);
      other->num_computed = 0;
    }
    return started;
  }
  return true;
}

Result<bool> Scheduler::start(Sequence& s, bool needs_chunk) {
  const std::int64_t cached = num_cached(s);
  if (needs_chunk && chunk_size(s, cached) == 0) return false;
  const std::int64_t page_size = cache_->options().page_size;
  const KvCache::CachedPrefix prefix = cache_->find(keys(s, cached), salt(s));
  const std::int64_t num_pages = ceil_div(s.length(), page_size) - cached / page_size;
  if (!has_room(num_pages + prefix.num_free_pages)) return false;
  // One key more than the prefix: add() leaves the last one.
  Result<KvCache::Added> added = cache_->add(keys(s, cached + 1), salt(s));
  if (!added.ok()) return std::move(added.failure());
  s.cache_sequence = added.value().sequence;
  s.num_computed = cached;
  if (Status bad = reserve_all(s)) return std::move(*bad);
  num_started_pages_ += num_pages;
  if (s.state == SequenceState::waiting) {
    num_prompt_tokens_ += s.num_prompt;
    num_cached_tokens_ += cached;
    s.num_cached = cached;
  }
  return true;
}

Result<bool> Scheduler::swap_in(Sequence& s) {
  if (chunk_size(s, s.num_computed) == 0) return false;
  if (!has_room(ceil_div(s.length(), cache_->options().page_size))) return false;
  if (Status bad = cache_->swap_in(s.cache_sequence, options_.stream)) return std::move(*bad);
  s.is_swapped = false;
  if (Status bad = reserve_all(s)) return std::move(*bad);
  return true;
}

// Recent pages are there for the tokens of a step alone, so a cache of codes reserves those.
Status Scheduler::reserve_all(const Sequence& s) {
  return cache_->has_codes() ? std::nullopt
                             : cache_->reserve(s.cache_sequence, s.num_left(), options_.stream);
}

bool Scheduler::has_room(std::int64_t num_pages) const {
  return running_.empty() || num_pages + options_.watermark_pages + num_promised_pages() <=
                                 cache_->allocator().num_free();
}

// Of running sequences and of those that are started with them, which have not taken them yet.
std::int64_t Scheduler::num_promised_pages() const {
  if (!cache_->has_codes()) return 0;
  std::int64_t num_pages = num_started_pages_;
  for (const Sequence* s : running_)
    num_pages += ceil_div(s->length(), cache_->options().page_size) -
                 std::ssize(cache_->block_table(s->cache_sequence));
  return num_pages;
}

// Cached tokens that the sequence can begin with. What is left of the prompt after them is not less
// than a chunk.
std::int64_t Scheduler::num_cached(const Sequence& s) const {
  const std::int64_t found = cache_->find(keys(s, s.length() - 1), salt(s)).num_tokens;
  const std::int64_t most = std::max<std::int64_t>(0, s.num_prompt - options_.min_chunk);
  if (found <= most || found >= s.num_prompt) return found;
  const std::int64_t page_size = cache_->options().page_size;
  return most / page_size * page_size;
}

// Keys of the prefix cache.
std::int32_t Scheduler::key(const Sequence& s, std::int64_t idx) const {
  return s.tokens[static_cast<std::size_t>(idx)] + (idx < s.num_prompt ? 0 : kGenerated);
}

std::vector<std::int32_t> Scheduler::keys(const Sequence& s, std::int64_t length) const {
  std::vector<std::int32_t> keys(static_cast<std::size_t>(length));
  for (std::int64_t i = 0; i < length; ++i) keys[static_cast<std::size_t>(i)] = key(s, i);
  return keys;
}

// Short prompts share pages only with prompts of the same length. Distinct for every pair of
// cache_salt and length.
std::uint64_t Scheduler::salt(const Sequence& s) const {
  const std::int64_t length = s.num_prompt < options_.min_chunk ? s.num_prompt : 0;
  return static_cast<std::uint64_t>(s.cache_salt) << kLengthBits |
         static_cast<std::uint64_t>(length);
}

// ---- chunks ----

// The next tokens of a sequence: all that are left, or as many as the step takes such that neither
// the chunk nor what is left of the prompt is shorter than min_chunk.
std::int64_t Scheduler::chunk_size(const Sequence& s, std::int64_t num_computed) const {
  const std::int64_t most = std::min(budget_, s.length() - num_computed);
  const std::int64_t num_prompt_left = s.num_prompt - num_computed;
  if (num_prompt_left <= most) return most;
  const std::int64_t size = std::min(most, num_prompt_left - options_.min_chunk);
  return size < options_.min_chunk ? 0 : size;
}

void Scheduler::add_chunk(const Sequence& s, std::int64_t num_tokens) {
  if (num_tokens == 0) return;
  const std::int64_t first = s.num_computed, last = first + num_tokens;
  chunks_.push_back(
      {.id = s.id,
       .cache_sequence = s.cache_sequence,
       .tokens = std::span(s.tokens).subspan(static_cast<std::size_t>(first),
                                             static_cast<std::size_t>(num_tokens)),
       .num_generated = std::max<std::int64_t>(0, last - std::max(first, s.num_prompt)),
       .is_last = last == s.length()});
  budget_ -= num_tokens;
}

Status Scheduler::complete() {
  for (const Chunk& chunk : chunks_) {
    const auto* const found = sequences_.find(chunk.id);
    if (found == nullptr) continue;
    Sequence& s = **found;
    const std::int64_t last = s.num_computed + static_cast<std::int64_t>(chunk.tokens.size());
    committed_.clear();
    for (std::int64_t i = s.num_computed; i < last; ++i) committed_.push_back(key(s, i));
    HEADRACE_TRY(cache_->commit(s.cache_sequence, committed_));
    s.num_computed = last;
  }
  return std::nullopt;
}

}  // namespace headrace::engine
