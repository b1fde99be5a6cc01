// Decides which tokens of which sequences are computed in a step. Host logic over a KvCache: no
// model.
//
// A step takes up to max_batch_tokens tokens: one of every sequence that decodes, then chunks of
// prompts, then new sequences, as long as pages are free. Beside sequences that decode, prompts
// have up to max_prompt_tokens, as those wait for the step, and with prompt_tile a quarter of those
// that could be computed: few prompts delay decodes little, and many soon have whole steps. Order:
// priority, then arrival; after max_age_steps steps a sequence ranks before all younger ones, so
// that none starves. If a sequence needs a page and none is free, the last one in this order is
// preempted: its pages move to the host if the cache has host pages, else it is computed anew
// later.
//
// Sequences of a gang (the beams of a search) run together: if one is preempted, all are, and they
// start again together. So none holds pages while it waits for another one that has none.
//
// The bits of a row must not depend on the schedule. Attention kernels choose their path by the
// rows (tokens x heads of a KV head's group) that a sequence has in a call, so the schedule makes
// equal calls:
//   - A chunk of a prompt has at least min_chunk tokens, enough for the path of long prompts. A
//     shorter prompt is computed at once.
//   - A generated token is computed alone, when it is computed anew too (Chunk::num_generated).
//   - Cached pages are reused only where the same path computed them: the keys of the prefix cache
//     distinguish generated tokens and the lengths of short prompts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "base/id_map.h"
#include "engine/request.h"
#include "kv_cache/kv_cache.h"

namespace headrace::engine {

// With as many tokens a prompt always advances: any that is longer has a chunk and a rest of at
// least min_chunk.
constexpr std::int64_t least_prompt_tokens(std::int64_t min_chunk) { return 2 * min_chunk - 1; }

struct SchedulerOptions {
  std::int64_t max_batch_tokens = 512;
  std::int64_t max_prompt_tokens = 0;  // in a step with decodes; 0: those that are left
  std::int64_t prompt_tile = 0;        // such steps have a multiple of so many tokens; 0: any
  std::int64_t max_num_seqs = 32;      // running sequences
  std::int64_t max_length = 0;         // tokens of a sequence; its pages must fit the cache
  std::int64_t min_chunk = 1;          // tokens of a prompt
  std::int64_t watermark_pages = 0;    // stay free when a sequence is admitted beside others
  std::int64_t max_age_steps = 4096;
  Stream stream = nullptr;  // of the steps, for copies of pages
};

struct SchedulerStats {
  std::int64_t num_waiting, num_running, num_preempted;
  std::int64_t num_steps, num_scheduled_tokens;  // since the beginning
  std::int64_t num_preemptions;
  std::int64_t num_prompt_tokens, num_cached_tokens;  // of admitted sequences; found in the cache
};

// A part of a step: the next tokens of a sequence.
struct Chunk {
  std::int64_t id;
  std::int64_t cache_sequence;           // its slots are reserved
  std::span<const std::int32_t> tokens;  // valid until the sequence changes
  std::int64_t num_generated;            // the last of them; attention computes each alone
  bool is_last;                          // its last token is the last of the sequence
};

class Scheduler {
 public:
  // invalid_argument: the options. The cache must outlive the scheduler and have no other user.
  static Result<Scheduler> make(KvCache& cache, const SchedulerOptions& options);
  // Part of make(), for what is sized before there is a cache. invalid_argument.
  static Status check_num_seqs(std::int64_t max_num_seqs, std::int64_t max_batch_tokens);

  // A new sequence, waiting. The caller has checked that max_length is not exceeded. Sequences
  // share cached pages only with those of the same cache_salt, 0 to kMaxCacheSalt.
  static constexpr std::int64_t kMaxCacheSalt = (std::int64_t{1} << 56) - 1;
  // has_gang: its forks and theirs are a gang. The caller has checked that it has at most
  // max_num_seqs sequences, whose pages fit the cache together if they share none.
  std::int64_t add(std::vector<std::int32_t> prompt, std::int64_t priority,
                   std::int64_t cache_salt = 0, bool has_gang = false);
  // Another sequence after the tokens of `id`, which are computed. It runs, in the same pages, if
  // max_num_seqs allows, else it waits; its gang waits with it.
  Result<std::int64_t> fork(std::int64_t id);
  // Appends a generated token, which a later step computes. Below 0: it is on its way, and known to
  // replace_last() before the next complete().
  void append(std::int64_t id, std::int32_t token);
  void replace_last(std::int64_t id, std::int32_t token);
  // Forgets the sequence and frees its pages.
  Status finish(std::int64_t id);

  // Forgets all sequences, whose pages the caller frees.
  void clear() noexcept;

  // Whether the next step preempts no sequence: tokens that are on their way could not be computed
  // anew.
  bool has_pages_for_all() const;
  // Makes the next step and reserves its slots. The step before must be completed, or its sequences
  // finished.
  Status schedule();
  // Of the current step; empty if nothing is to be computed.
  std::span<const Chunk> chunks() const { return chunks_; }
  // The tokens of the chunks are computed. Chunks of finished sequences are ignored.
  Status complete();

  SequenceState state(std::int64_t id) const;  // finished: also an id that is not in use
  struct Tokens {
    std::span<const std::int32_t> prompt, output;
    std::int64_t num_cached;  // of the prompt, in the prefix cache when the sequence started

    std::int64_t length() const { return std::ssize(prompt) + std::ssize(output); }
  };
  Tokens tokens(std::int64_t id) const;  // valid until the sequence changes
  bool is_computed(std::int64_t id) const { return sequences_.at(id)->num_left() == 0; }
  bool is_idle() const { return sequences_.empty(); }
  SchedulerStats stats() const;

 private:
  struct Sequence {
    std::int64_t id = 0;
    std::int64_t arrival = 0;  // forks share that of their parent
    std::int64_t priority = 0;
    std::int64_t cache_salt = 0;
    std::int64_t gang = 0;  // the id of its first sequence; 0: none
    SequenceState state = SequenceState::waiting;
    bool is_overdue = false;
    bool is_swapped = false;
    std::vector<std::int32_t> tokens;  // prompt and output
    std::int64_t num_prompt = 0;
    std::int64_t num_cached = 0;    // of the prompt, when it started
    std::int64_t num_computed = 0;  // in the cache
    std::int64_t cache_sequence = 0;

    std::int64_t length() const { return static_cast<std::int64_t>(tokens.size()); }
    std::int64_t num_left() const { return length() - num_computed; }
    // Lower runs first.
    auto rank() const { return std::tuple(!is_overdue, is_overdue ? 0 : priority, arrival, id); }
  };
  struct ByRank {
    bool operator()(const Sequence* a, const Sequence* b) const { return a->rank() < b->rank(); }
  };
  using Waiting = std::set<Sequence*, ByRank>;
  // As a set, in one array: a step visits all that run several times.
  class Running {
   public:
    void insert(Sequence* s) { all_.insert(place_of(s), s); }
    void erase(Sequence* s) { all_.erase(place_of(s)); }
    void clear() noexcept { all_.clear(); }
    bool empty() const { return all_.empty(); }
    std::size_t size() const { return all_.size(); }
    auto begin() const { return all_.begin(); }
    auto end() const { return all_.end(); }

   private:
    std::vector<Sequence*>::const_iterator place_of(Sequence* s) const {
      return std::ranges::lower_bound(all_, s, ByRank());
    }
    std::vector<Sequence*> all_;
  };
  struct Deadline {
    std::int64_t id, step;
  };

  Scheduler(KvCache& cache, const SchedulerOptions& options) : cache_(&cache), options_(options) {}

  Sequence& insert(Sequence sequence);
  void promote_overdue();
  Status preempt_split_gangs();
  Status schedule_decodes();
  std::int64_t prompt_budget() const;
  std::int64_t num_prompt_tokens_left(std::int64_t most) const;
  Status schedule_prefills();
  Status add_prefill(Sequence& s);
  Status reserve_chunk(Sequence& s, std::int64_t num_tokens);
  Status admit();
  // With its gang.
  Status preempt(Sequence& s);
  Status preempt_alone(Sequence& s);
  // Takes pages for all tokens of a waiting sequence, or promises them; false: too few are free, or
  // the step has no room for a chunk that is needed.
  Result<bool> start(Sequence& s, bool needs_chunk);
  Result<bool> swap_in(Sequence& s);
  // Starts the sequences, a waiting one or a gang, or none of them.
  Result<bool> start_all(std::span<Sequence* const> sequences);
  template <class Ranked>  // Waiting or Running
  static std::vector<Sequence*> gang_of(const Ranked& ranked, Sequence& s);
  void add_chunk(const Sequence& s, std::int64_t num_tokens);

  std::int64_t chunk_size(const Sequence& s, std::int64_t num_computed) const;
  std::int64_t num_cached(const Sequence& s) const;
  std::int32_t key(const Sequence& s, std::int64_t idx) const;
  std::vector<std::int32_t> keys(const Sequence& s, std::int64_t length) const;  // the first ones
  std::uint64_t salt(const Sequence& s) const;
  Status reserve_all(const Sequence& s);
  bool has_room(std::int64_t num_pages) const;
  std::int64_t num_promised_pages() const;

  KvCache* cache_;
  SchedulerOptions options_;
  IdMap<std::unique_ptr<Sequence>> sequences_;
  Waiting waiting_;  // also preempted
  Running running_;
  std::deque<Deadline> deadlines_;
  std::vector<std::int64_t> split_;  // forks of gangs that wait
  std::int64_t last_id_ = 0, step_ = 0;

  // Of the current step.
  std::vector<Chunk> chunks_;
  std::vector<std::int32_t> committed_;  // keys of a chunk
  std::int64_t budget_ = 0;              // tokens left
  bool has_preempted_ = false;
  std::int64_t num_started_pages_ = 0;  // by start_all()

  std::int64_t num_scheduled_tokens_ = 0, num_preemptions_ = 0;
  std::int64_t num_prompt_tokens_ = 0, num_cached_tokens_ = 0;
};

}  // namespace headrace::engine
