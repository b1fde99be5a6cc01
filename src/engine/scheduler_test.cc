// Random operations on a scheduler beside a naive model of what it promises. Keys and values are a
// function of all tokens up to a position and of the attention path that computes them, as those of
// a model are.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <numeric>
#include <utility>

#include "base/math.h"
#include "tests/support/kv_cache_rows.h"

namespace headrace::engine {
namespace {

using testing::Random;
using testing::TokenRows;
using Tokens = std::vector<std::int32_t>;

// HEADRACE_TEST_STEPS: for longer runs.
std::int64_t num_steps() {
  const char* const steps = std::getenv("HEADRACE_TEST_STEPS");
  return steps == nullptr ? 6000 : std::atoll(steps);
}

struct Setting {
  std::int64_t page_size, num_pages, num_host_pages, min_chunk, max_batch_tokens, watermark_pages;
  bool has_prefix_cache;
  std::int64_t max_prompt_tokens = 0, prompt_tile = 0;
};

void PrintTo(const Setting& s, std::ostream* out) {
  *out << s.page_size << "x" << s.num_pages << "+" << s.num_host_pages << ", chunks from "
       << s.min_chunk << ", budget " << s.max_batch_tokens << ", prompts " << s.max_prompt_tokens
       << ", tiles of " << s.prompt_tile;
}

struct Caches {
  explicit Caches(const Setting& s)
      : device(make_host_device(cpu_info().value())),
        cache(std::move(KvCache::make(*device, {.shape = {1, 1, 2, 2, DType::f32},
                                                .page_size = s.page_size,
                                                .num_pages = s.num_pages,
                                                .num_host_pages = s.num_host_pages,
                                                .has_prefix_cache = s.has_prefix_cache})
                            .value())) {}
  std::unique_ptr<Device> device;
  KvCache cache;
};

class RandomSchedules : public ::testing::TestWithParam<Setting> {
 protected:
  static constexpr std::int64_t kMaxLength = 40, kMaxSeqs = 5, kMaxLive = 16, kMaxAge = 60;

  struct Naive {
    Tokens tokens;
    std::int64_t num_prompt, priority;
    std::int64_t length;      // of prompt and output at the end
    std::int64_t num_forks;   // after the prompt
    std::int64_t first_step;  // in which it was added
    bool is_fork = false;
    bool has_started = false;  // was it ever in a step
    bool is_counted = false;   // among the sequences that were admitted
  };

  void operate() {
    if (std::ssize(live_) < kMaxLive && random_.chance(30)) add();
    if (!live_.empty() && random_.chance(2)) finish(pick());
    if (!live_.empty()) step();
    check_counts();
  }

  void add() {
    const std::int64_t num_prompt = random_.between(1, 24);
    Tokens prompt(static_cast<std::size_t>(num_prompt));
    for (auto& token : prompt) token = random_.chance(10);
    const std::int64_t priority = random_.between(0, 2);
    const std::int64_t id = scheduler_.add(prompt, priority);
    live_[id] = {.tokens = prompt,
                 .num_prompt = num_prompt,
                 .priority = priority,
                 .length = random_.between(num_prompt + 1, kMaxLength),
                 .num_forks = random_.chance(20) ? random_.between(1, 3) : 0,
                 .first_step = step_};
  }
  std::int64_t pick() {
    return std::next(live_.begin(), random_.between(0, std::ssize(live_) - 1))->first;
  }
  void finish(std::int64_t id) {
    EXPECT_FALSE(scheduler_.finish(id));
    EXPECT_EQ(scheduler_.state(id), SequenceState::finished);
    // What is allowed for the age, and then four times the steps of each sequence that was before.
    EXPECT_LE(step_ - live_.at(id).first_step, kMaxAge + 4 * kMaxLength * kMaxLive) << "starved";
    live_.erase(id);
  }

  void step();
  void check_chunk(const Chunk& chunk, std::set<std::int64_t>& seen);
  void check_order() const;
  void check_counts() const;
  void compute(const Chunk& chunk);
  void extend(std::int64_t id);
  std::int64_t slot(std::int64_t cache_sequence, std::int64_t position) const {
    const auto page = static_cast<std::size_t>(position / GetParam().page_size);
    return cache().block_table(cache_sequence)[page] * GetParam().page_size +
           position % GetParam().page_size;
  }
  // Keys and values of a token; the path of attention is part of what they depend on.
  testing::Bytes rows_of(const Naive& naive, std::int64_t position) const {
    Tokens history(naive.tokens.begin(), naive.tokens.begin() + position + 1);
    for (auto i = static_cast<std::size_t>(naive.num_prompt); i < history.size(); ++i)
      history[i] += 100;
    const bool is_short = naive.num_prompt < GetParam().min_chunk;
    const auto path = static_cast<std::uint64_t>(is_short ? naive.num_prompt : 0);
    return rows_.made(testing::history_of(path, history));
  }
  const KvCache& cache() const { return caches_.cache; }

  Caches caches_{GetParam()};
  TokenRows rows_{caches_.cache};
  Scheduler scheduler_ =
      std::move(Scheduler::make(caches_.cache, {.max_batch_tokens = GetParam().max_batch_tokens,
                                                .max_prompt_tokens = GetParam().max_prompt_tokens,
                                                .prompt_tile = GetParam().prompt_tile,
                                                .max_num_seqs = kMaxSeqs,
                                                .max_length = kMaxLength,
                                                .min_chunk = GetParam().min_chunk,
                                                .watermark_pages = GetParam().watermark_pages,
                                                .max_age_steps = kMaxAge})
                    .value());
  Random random_{20261124};
  std::map<std::int64_t, Naive> live_;
  std::int64_t step_ = 0, num_finished_ = 0, num_limited_ = 0;
  std::int64_t num_scheduled_tokens_ = 0, num_prompt_tokens_ = 0, num_cached_tokens_ = 0;
};

void RandomSchedules::step() {
  std::set<std::int64_t> running;
  for (const auto& [id, naive] : live_)
    if (scheduler_.state(id) == SequenceState::running) running.insert(id);
  ASSERT_FALSE(scheduler_.schedule());
  const std::vector<Chunk> copy(scheduler_.chunks().begin(), scheduler_.chunks().end());
  ASSERT_FALSE(copy.empty()) << "there is work";
  ++step_;
  std::set<std::int64_t> seen;
  std::int64_t num_tokens = 0, num_decodes = 0;
  bool has_decode = false;  // of a sequence that was running
  for (const Chunk& chunk : copy) {
    check_chunk(chunk, seen);
    num_tokens += std::ssize(chunk.tokens);
    if (chunk.tokens.size() == 1 && chunk.is_last) ++num_decodes;
    has_decode |= chunk.tokens.size() == 1 && running.contains(chunk.id);
  }
  EXPECT_LE(num_tokens, GetParam().max_batch_tokens);
  if (has_decode && GetParam().max_prompt_tokens > 0) {
    EXPECT_LE(num_tokens - num_decodes, GetParam().max_prompt_tokens);
    ++num_limited_;
  }
  num_scheduled_tokens_ += num_tokens;
  check_order();
  std::vector<std::int64_t> complete;
  for (const Chunk& chunk : copy) {
    compute(chunk);
    if (chunk.is_last) complete.push_back(chunk.id);
  }
  if (random_.chance(2)) finish(copy.front().id);  // a step whose sequence ends meanwhile
  ASSERT_FALSE(scheduler_.complete());
  for (const std::int64_t id : complete)
    if (live_.contains(id)) extend(id);
}

// A sampled token, after forks if the prompt was complete.
void RandomSchedules::extend(std::int64_t id) {
  Naive& naive = live_.at(id);
  for (; naive.num_forks > 0; --naive.num_forks) {
    const std::int64_t fork = scheduler_.fork(id).value();
    Naive& copy = live_[fork] = naive;
    copy.num_forks = 0;
    copy.is_fork = true;
    copy.is_counted = scheduler_.state(fork) == SequenceState::running;
    copy.first_step = step_;
    copy.length = random_.between(naive.num_prompt + 1, kMaxLength);
    if (scheduler_.state(fork) == SequenceState::running) extend(fork);
  }
  const std::int32_t token = random_.chance(30);
  scheduler_.append(id, token);
  naive.tokens.push_back(token);
  if (std::ssize(naive.tokens) < naive.length) return;
  finish(id);
  ++num_finished_;
}

void RandomSchedules::check_chunk(const Chunk& chunk, std::set<std::int64_t>& seen) {
  ASSERT_TRUE(live_.contains(chunk.id));
  EXPECT_TRUE(seen.insert(chunk.id).second) << "two chunks of a sequence";
  EXPECT_EQ(scheduler_.state(chunk.id), SequenceState::running);
  Naive& naive = live_.at(chunk.id);
  naive.has_started = true;
  const std::int64_t first = cache().info(chunk.cache_sequence).value().length;
  const std::int64_t last = first + std::ssize(chunk.tokens), total = std::ssize(naive.tokens);
  ASSERT_GT(last, first);
  ASSERT_LE(last, total);
  EXPECT_EQ(chunk.is_last, last == total);
  if (!std::exchange(naive.is_counted, true)) {
    num_prompt_tokens_ += naive.num_prompt;
    num_cached_tokens_ += first;
  }
  EXPECT_EQ(Tokens(chunk.tokens.begin(), chunk.tokens.end()),
            Tokens(naive.tokens.begin() + first, naive.tokens.begin() + last));
  // The path of attention.
  EXPECT_EQ(chunk.num_generated,
            std::max<std::int64_t>(0, last - std::max(first, naive.num_prompt)));
  const std::int64_t of_prompt = std::ssize(chunk.tokens) - chunk.num_generated;
  const std::int64_t left = std::max<std::int64_t>(0, naive.num_prompt - last);
  if (of_prompt > 0) {
    EXPECT_GE(of_prompt, std::min(GetParam().min_chunk, naive.num_prompt));
  }
  if (left > 0) {
    EXPECT_GE(left, GetParam().min_chunk);
  }
  // What the sequence finds in its pages is what it would compute.
  for (std::int64_t i = 0; i < first; ++i)
    ASSERT_EQ(rows_.read(slot(chunk.cache_sequence, i)), rows_of(naive, i)) << i;
}

// A request that has started is before all of the same priority that have not.
void RandomSchedules::check_order() const {
  for (std::int64_t priority = 0; priority <= 2; ++priority) {
    std::int64_t last_started = -1, first_waiting = INT64_MAX;
    for (const auto& [id, naive] : live_) {
      if (naive.priority != priority || naive.is_fork) continue;
      if (naive.has_started) last_started = std::max(last_started, id);
      if (!naive.has_started) first_waiting = std::min(first_waiting, id);
    }
    EXPECT_LT(last_started, first_waiting) << "priority " << priority;
  }
}

void RandomSchedules::compute(const Chunk& chunk) {
  const Naive& naive = live_.at(chunk.id);
  const std::int64_t first = cache().info(chunk.cache_sequence).value().length;
  for (std::int64_t i = first; i < first + std::ssize(chunk.tokens); ++i)
    rows_.write(slot(chunk.cache_sequence, i), rows_of(naive, i));
}

void RandomSchedules::check_counts() const {
  const SchedulerStats stats = scheduler_.stats();
  EXPECT_LE(stats.num_running, kMaxSeqs);
  EXPECT_EQ(stats.num_running + stats.num_waiting + stats.num_preempted, std::ssize(live_));
  EXPECT_EQ(stats.num_steps, step_);
  EXPECT_EQ(stats.num_scheduled_tokens, num_scheduled_tokens_);
  // A sequence that is computed anew counts once.
  EXPECT_EQ(stats.num_prompt_tokens, num_prompt_tokens_);
  EXPECT_EQ(stats.num_cached_tokens, num_cached_tokens_);
  const KvCacheStats kv = cache().stats();
  EXPECT_EQ(kv.num_sequences - kv.num_swapped_sequences, stats.num_running);
  EXPECT_LE(kv.num_swapped_sequences, stats.num_preempted);
}

TEST_P(RandomSchedules, KeepTheirPromises) {
  for (std::int64_t i = 0; i < num_steps() && !HasFailure(); ++i) operate();
  while (!live_.empty() && !HasFailure()) step();
  EXPECT_GT(num_finished_, num_steps() / 100);
  EXPECT_EQ(num_limited_ > 0, GetParam().max_prompt_tokens > 0);
  EXPECT_TRUE(scheduler_.is_idle());
  EXPECT_EQ(cache().allocator().num_free(), GetParam().num_pages);
  EXPECT_EQ(cache().host_allocator().num_free(), GetParam().num_host_pages);
  // The settings are such that these happen.
  EXPECT_GT(scheduler_.stats().num_preemptions, 0);
  EXPECT_EQ(cache().stats().num_pages_swapped_in > 0, GetParam().num_host_pages > 0);
  EXPECT_EQ(scheduler_.stats().num_cached_tokens > 0, GetParam().has_prefix_cache);
}

INSTANTIATE_TEST_SUITE_P(
    All, RandomSchedules,
    ::testing::Values(Setting{1, 60, 0, 1, 8, 0, true}, Setting{2, 28, 0, 3, 9, 1, true},
                      Setting{4, 12, 0, 5, 16, 2, true}, Setting{4, 13, 20, 7, 64, 0, true},
                      Setting{3, 16, 0, 12, 80, 3, true}, Setting{7, 7, 0, 4, 12, 0, false},
                      Setting{64, 3, 4, 6, 17, 0, false}, Setting{4, 30, 0, 4, 64, 0, true, 7},
                      Setting{4, 13, 20, 7, 64, 0, true, 15},
                      Setting{4, 30, 0, 3, 64, 0, true, 0, 8},
                      Setting{4, 13, 20, 5, 64, 0, true, 15, 4}));

// ---- the order of a few sequences ----

class Schedules : public ::testing::Test {
 protected:
  // The ids in a step, in its order; every complete sequence gets a token.
  std::vector<std::int64_t> step() {
    std::vector<std::int64_t> ids, complete;
    EXPECT_FALSE(scheduler_.schedule());
    for (const Chunk& chunk : scheduler_.chunks()) {
      ids.push_back(chunk.id);
      if (chunk.is_last) complete.push_back(chunk.id);
    }
    EXPECT_FALSE(scheduler_.complete());
    for (const std::int64_t id : complete) scheduler_.append(id, 1);
    return ids;
  }
  static Tokens prompt(std::int64_t length) { return Tokens(static_cast<std::size_t>(length), 0); }

  Caches caches_{{4, 8, 0, 1, 0, 0, false}};
  Scheduler scheduler_ = std::move(
      Scheduler::make(
          caches_.cache,
          {.max_batch_tokens = 8, .max_num_seqs = 2, .max_length = 32, .max_age_steps = 20})
          .value());
};

TEST_F(Schedules, TakeDecodesBeforePrompts) {
  const std::int64_t early = scheduler_.add(prompt(20), 0);
  EXPECT_EQ(step(), std::vector{early});
  const std::int64_t late = scheduler_.add(prompt(2), 0);
  EXPECT_EQ(step(), std::vector{early});  // 8 of 12
  EXPECT_EQ(step(), (std::vector{early, late}));
  scheduler_.add(prompt(20), 0);
  EXPECT_EQ(step(), (std::vector{early, late}));
  ASSERT_FALSE(scheduler_.finish(early));
  EXPECT_EQ(step().front(), late);
}

TEST_F(Schedules, TakeTheLowestPriorityValueFirst) {
  const std::int64_t second = scheduler_.add(prompt(8), 5);
  const std::int64_t first = scheduler_.add(prompt(8), -5);
  EXPECT_EQ(step(), std::vector{first});
  EXPECT_EQ(step(), (std::vector{first, second}));
}

TEST_F(Schedules, LetNoSequenceStarve) {
  const std::int64_t last = scheduler_.add(prompt(8), 1);
  // Two of a higher priority are always there.
  std::vector<std::int64_t> others = {scheduler_.add(prompt(4), 0), scheduler_.add(prompt(4), 0)};
  bool has_run = false;
  for (int i = 0; i < 60 && !has_run; ++i) {
    for (const std::int64_t id : step()) has_run |= id == last;
    if (i % 3 != 0) continue;
    ASSERT_FALSE(scheduler_.finish(others.front()));
    others = {others.back(), scheduler_.add(prompt(4), 0)};
  }
  EXPECT_TRUE(has_run);
}

TEST_F(Schedules, PreemptTheLastToCome) {
  const std::int64_t early = scheduler_.add(prompt(4), 0), late = scheduler_.add(prompt(4), 0);
  // 8 pages of 4 tokens.
  for (int length = 4; length < 16; ++length) ASSERT_EQ(step(), (std::vector{early, late}));
  ASSERT_EQ(step(), (std::vector{early, late}));
  ASSERT_EQ(step(), std::vector{early});
  EXPECT_EQ(scheduler_.state(late), SequenceState::preempted);
  EXPECT_EQ(scheduler_.state(early), SequenceState::running);
  ASSERT_FALSE(scheduler_.finish(early));
  EXPECT_EQ(step(), std::vector{late});
  EXPECT_EQ(scheduler_.stats().num_preemptions, 1);
}

// ---- gangs ----

class Gangs : public ::testing::Test {
 protected:
  static constexpr std::int64_t kMaxLength = 20, kMaxWidth = 3;
  struct Gang {
    std::vector<std::int64_t> members;
    std::int64_t width, length;  // at the end
  };

  void add() {
    const std::int64_t width = random_.between(1, kMaxWidth), prompt = random_.between(1, 9);
    const std::int64_t id =
        scheduler_.add(Tokens(static_cast<std::size_t>(prompt), random_.chance(50)),
                       random_.between(0, 1), 0, width > 1);
    gangs_.push_back({{id}, width, random_.between(prompt + 1, kMaxLength)});
  }

  void step() {
    ASSERT_FALSE(scheduler_.schedule());
    std::int64_t num_tokens = 0;
    for (const Chunk& chunk : scheduler_.chunks()) {
      num_tokens += std::ssize(chunk.tokens);
      EXPECT_EQ(scheduler_.state(chunk.id), SequenceState::running);
    }
    EXPECT_GT(num_tokens, 0) << "there is work";
    EXPECT_LE(num_tokens, 12);
    for (const Gang& gang : gangs_) {
      const auto is_running = [&](std::int64_t id) {
        return scheduler_.state(id) == SequenceState::running;
      };
      const std::int64_t num_running = std::ranges::count_if(gang.members, is_running);
      EXPECT_TRUE(num_running == 0 || num_running == std::ssize(gang.members));
    }
    ASSERT_FALSE(scheduler_.complete());
    for (Gang& gang : gangs_)
      if (std::ranges::all_of(gang.members, [&](auto id) { return scheduler_.is_computed(id); }))
        extend(gang);
    num_ended_ += static_cast<std::int64_t>(
        std::erase_if(gangs_, [](const Gang& gang) { return gang.members.empty(); }));
  }

  // Each of the next members continues one of these.
  void extend(Gang& gang) {
    if (scheduler_.tokens(gang.members[0]).length() == gang.length) {
      for (const std::int64_t id : std::exchange(gang.members, {}))
        EXPECT_FALSE(scheduler_.finish(id));
      return;
    }
    std::vector<std::int64_t> next;
    for (std::int64_t i = random_.between(1, gang.width); i > 0; --i)
      next.push_back(
          gang.members[static_cast<std::size_t>(random_.between(0, std::ssize(gang.members) - 1))]);
    for (const std::int64_t id : gang.members)
      if (std::ranges::find(next, id) == next.end()) {
        EXPECT_FALSE(scheduler_.finish(id));
      }
    for (auto id = next.begin(); id != next.end(); ++id)
      if (std::find(next.begin(), id, *id) != id) *id = scheduler_.fork(*id).value();
    for (const std::int64_t id : next) scheduler_.append(id, random_.chance(50));
    gang.members = next;
  }

  Caches caches_{{4, 16, 6, 1, 0, 0, true}};
  Scheduler scheduler_ = std::move(Scheduler::make(caches_.cache, {.max_batch_tokens = 12,
                                                                   .max_num_seqs = 4,
                                                                   .max_length = kMaxLength,
                                                                   .max_age_steps = 40})
                                       .value());
  Random random_{20261125};
  std::vector<Gang> gangs_;
  std::int64_t num_ended_ = 0;
};

TEST_F(Gangs, RunTogetherAndEnd) {
  for (std::int64_t i = 0; i < num_steps() && !HasFailure(); ++i) {
    if (gangs_.size() < 6 && random_.chance(40)) add();
    if (!gangs_.empty()) step();
  }
  for (std::int64_t i = 0; i < 1000 && !gangs_.empty() && !HasFailure(); ++i) step();
  EXPECT_TRUE(scheduler_.is_idle());
  EXPECT_EQ(caches_.cache.allocator().num_free(), 16);
  EXPECT_GT(num_ended_, num_steps() / 50);
  EXPECT_GT(scheduler_.stats().num_preemptions, num_steps() / 50);
}

TEST(SchedulerOptions, AreChecked) {
  Caches caches({4, 8, 0, 1, 0, 0, false});
  const SchedulerOptions good = {.max_batch_tokens = 8, .max_num_seqs = 2, .max_length = 32};
  const auto message = [&](auto change) {
    SchedulerOptions options = good;
    change(options);
    Result<Scheduler> made = Scheduler::make(caches.cache, options);
    return made.ok() ? std::string() : made.failure().message;
  };
  EXPECT_EQ(message([](auto&) {}), "");
  for (const std::int64_t max_num_seqs : {std::int64_t{0}, std::int64_t{9}, INT64_MAX})
    EXPECT_EQ(message([&](auto& o) { o.max_num_seqs = max_num_seqs; }),
              "max_num_seqs=" + std::to_string(max_num_seqs) +
                  ": must be 1 to max_batch_tokens=8: a step computes a token of each sequence; "
                  "pass fewer");
  EXPECT_EQ(message([](auto& o) { o.min_chunk = 5; }),
            "max_batch_tokens=8: must be at least 10: a token of each of max_num_seqs=2 sequences "
            "and a chunk of a prompt; pass more, or a smaller max_num_seqs");
  EXPECT_EQ(message([](auto& o) { o.max_prompt_tokens = 1; }), "");
  EXPECT_EQ(message([](auto& o) {
              o.min_chunk = 3;
              o.max_prompt_tokens = 4;
            }),
            "max_prompt_tokens=4: must be at least 5; pass more, so that every prompt advances, or "
            "0");
  EXPECT_EQ(message([](auto& o) { o.max_length = 33; }),
            "num_pages=8: must be at least 9, the pages of a sequence of 33 tokens; pass more "
            "pages or a smaller context");
  for (const auto field : {&SchedulerOptions::watermark_pages, &SchedulerOptions::max_age_steps,
                           &SchedulerOptions::min_chunk, &SchedulerOptions::max_length,
                           &SchedulerOptions::prompt_tile})
    EXPECT_NE(message([&](auto& o) { o.*field = -1; }).find("=-1: must be at least "),
              std::string::npos);
}

}  // namespace
}  // namespace headrace::engine
