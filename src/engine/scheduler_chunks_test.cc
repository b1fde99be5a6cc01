// The sizes of chunks, of the smallest step, and of what a prompt finds in the prefix cache: each
// of them beside a search over all sizes.
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <optional>
#include <stdexcept>

#include "engine/scheduler.h"

namespace headrace::engine {
namespace {

using Tokens = std::vector<std::int32_t>;

// Alone in the step, the prompt may take this many of the tokens that are left: all of them, or the
// most such that neither the chunk nor the rest is shorter than min_chunk.
std::int64_t expected_chunk(std::int64_t left, std::int64_t budget, std::int64_t min_chunk) {
  for (std::int64_t size = std::min(left, budget); size > 0; --size)
    if (size == left || (size >= min_chunk && left - size >= min_chunk)) return size;
  return 0;
}

struct Sizes {
  std::int64_t min_chunk, max_batch_tokens, max_num_seqs = 1, page_size = 4;
  std::int64_t max_prompt_tokens = 0, prompt_tile = 0;
};

struct Alone {
  explicit Alone(const Sizes& sizes)
      : device(make_host_device(cpu_info().value())),
        cache(std::move(KvCache::make(*device, {.shape = {1, 1, 2, 2, DType::f32},
                                                .page_size = sizes.page_size,
                                                .num_pages = 64})
                            .value())) {
    Result<Scheduler> made = Scheduler::make(cache, {.max_batch_tokens = sizes.max_batch_tokens,
                                                     .max_prompt_tokens = sizes.max_prompt_tokens,
                                                     .prompt_tile = sizes.prompt_tile,
                                                     .max_num_seqs = sizes.max_num_seqs,
                                                     .max_length = 64,
                                                     .min_chunk = sizes.min_chunk});
    if (!made.ok()) throw std::runtime_error(made.failure().message);
    scheduler.emplace(std::move(made.value()));
  }
  // The tokens of each sequence in a step.
  std::map<std::int64_t, std::int64_t> step() {
    std::map<std::int64_t, std::int64_t> sizes;
    EXPECT_FALSE(scheduler->schedule());
    for (const Chunk& chunk : scheduler->chunks()) sizes[chunk.id] = std::ssize(chunk.tokens);
    EXPECT_FALSE(scheduler->complete());
    return sizes;
  }
  std::unique_ptr<Device> device;
  KvCache cache;
  std::optional<Scheduler> scheduler;
};

Tokens prompt_of(std::int64_t length) {
  Tokens tokens(static_cast<std::size_t>(length));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

TEST(Chunks, AreTheLargestThatLeaveEnough) {
  for (std::int64_t min_chunk = 1; min_chunk <= 6; ++min_chunk)
    for (std::int64_t budget = 2 * min_chunk - 1; budget <= 2 * min_chunk + 2; ++budget)
      for (std::int64_t length = 1; length <= 4 * min_chunk + 3; ++length) {
        SCOPED_TRACE(format_text("min_chunk {}, budget {}, prompt {}", min_chunk, budget, length));
        Alone alone({min_chunk, budget});
        const std::int64_t id = alone.scheduler->add(prompt_of(length), 0);
        for (std::int64_t left = length; left > 0;) {
          const std::int64_t size = expected_chunk(left, budget, min_chunk);
          ASSERT_GT(size, 0) << "such a budget is refused";
          ASSERT_EQ(alone.step(), (std::map{std::pair{id, size}}));
          left -= size;
        }
      }
}

// The smallest budget that is accepted: beside as many decoding sequences as there may be, a prompt
// of any length advances in each step.
TEST(Chunks, AdvanceBesideAllThatDecode) {
  for (std::int64_t min_chunk = 1; min_chunk <= 6; ++min_chunk)
    for (std::int64_t num_decodes = 1; num_decodes <= 3; ++num_decodes) {
      const std::int64_t least = num_decodes + 2 * min_chunk - 1;
      EXPECT_THROW(Alone({min_chunk, least - 1, num_decodes + 1}), std::runtime_error);
      for (std::int64_t length = 1; length <= 4 * min_chunk + 3; ++length) {
        SCOPED_TRACE(format_text("min_chunk {}, prompt {}", min_chunk, length));
        Alone alone({min_chunk, least, num_decodes + 1});
        std::vector<std::int64_t> decodes;
        for (std::int64_t i = 0; i < num_decodes; ++i)
          decodes.push_back(alone.scheduler->add({1}, 0));
        alone.step();
        const std::int64_t id = alone.scheduler->add(prompt_of(length), 0);
        for (std::int64_t left = length; left > 0;) {
          std::map<std::int64_t, std::int64_t> expected = {
              {id, expected_chunk(left, least - num_decodes, min_chunk)}};
          for (const std::int64_t decode : decodes) {
            alone.scheduler->append(decode, 1);
            expected[decode] = 1;
          }
          ASSERT_EQ(alone.step(), expected);
          left -= expected[id];
        }
      }
    }
}

struct Backlog {
  std::int64_t num_decodes;
  std::vector<std::int64_t> prompts;  // that wait, of which the last may find no place
};

// Tokens of prompts in the steps until all that have a place are computed, beside decodes.
std::vector<std::int64_t> steps_of(const Sizes& sizes, const Backlog& backlog) {
  Alone alone(sizes);
  std::vector<std::int64_t> decodes, steps;
  for (std::int64_t i = 0; i < backlog.num_decodes; ++i)
    decodes.push_back(alone.scheduler->add({1}, 0));
  if (!decodes.empty()) alone.step();
  std::int32_t first = 100;  // no page of one is another's
  for (const std::int64_t length : backlog.prompts) {
    Tokens prompt = prompt_of(length);
    prompt[0] = first++;
    alone.scheduler->add(std::move(prompt), 0);
  }
  for (;;) {
    for (const std::int64_t decode : decodes) alone.scheduler->append(decode, 1);
    std::int64_t num_tokens = -backlog.num_decodes;
    for (const auto& [id, size] : alone.step()) num_tokens += size;
    if (num_tokens == 0) return steps;
    steps.push_back(num_tokens);
  }
}

// Beside decodes a quarter of the prompts, in steps of whole tiles; alone as much as the step
// takes.
TEST(Chunks, ShareOutPromptsBesideDecodes) {
  const Sizes sizes{.min_chunk = 1, .max_batch_tokens = 32, .max_num_seqs = 4, .prompt_tile = 8};
  const auto expect_steps = [](const Sizes& s, const Backlog& backlog,
                               const std::vector<std::int64_t>& steps) {
    EXPECT_EQ(steps_of(s, backlog), steps) << backlog.num_decodes << " decodes";
  };
  expect_steps(sizes, {0, {40}}, {32, 8});
  // 10 of 40 and 2 decodes: 16 tokens. 7 of 26: 16. Then one tile, as 3 of 12 are less.
  expect_steps(sizes, {2, {40}}, {14, 14, 6, 6});
  expect_steps(sizes, {2, {20, 20}}, {14, 14, 6, 6});
  expect_steps(sizes, {2, {5}}, {5});
  // With 3 decodes one sequence has a place: 5 of 20 in one tile, not 20 of 80 in three.
  expect_steps(sizes, {3, {20, 60}}, {5, 5, 5, 5});
  Sizes bounded = sizes;
  bounded.max_prompt_tokens = 9;
  expect_steps(bounded, {2, {40}}, {9, 9, 6, 6, 6, 4});
  bounded = {.min_chunk = 5, .max_batch_tokens = 16, .max_num_seqs = 4, .prompt_tile = 8};
  // 9 tokens, so that any prompt advances: 10 would leave fewer than 5.
  expect_steps(bounded, {3, {14}}, {9, 5});
}

// What a sequence finds of an equal prompt: whole pages, such that what is left is a chunk. Prompts
// shorter than one are found by their equals alone.
TEST(Chunks, FindAsManyCachedPagesAsLeaveAChunk) {
  for (const std::int64_t page_size : {1, 2, 4})
    for (std::int64_t min_chunk = 1; min_chunk <= 6; ++min_chunk)
      for (std::int64_t before = 1; before <= 16; ++before)
        for (std::int64_t after = before; after <= 20; ++after) {
          Alone alone({min_chunk, 32, 1, page_size});
          const std::int64_t id = alone.scheduler->add(prompt_of(before), 0);
          alone.step();
          EXPECT_FALSE(alone.scheduler->finish(id));
          const std::int64_t next = alone.scheduler->add(prompt_of(after), 0);
          alone.step();
          const bool is_found = before >= min_chunk || before == after;
          const std::int64_t most =
              std::max<std::int64_t>(0, std::min({before, after - 1, after - min_chunk}));
          EXPECT_EQ(alone.scheduler->tokens(next).num_cached,
                    is_found ? most / page_size * page_size : 0)
              << "pages of " << page_size << ", min_chunk " << min_chunk << ", prompts of "
              << before << ", then " << after;
        }
}

TEST(Chunks, OfUpTo256TokensAreAccepted) {
  EXPECT_NO_THROW(Alone({256, 511}));
  try {
    Alone({257, 513});
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "min_chunk=257: must be at most 256; pass less");
  }
}

}  // namespace
}  // namespace headrace::engine
