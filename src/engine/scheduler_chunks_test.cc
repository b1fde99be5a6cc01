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
};

struct Alone {
  explicit Alone(const Sizes& sizes)
      : device(make_host_device(cpu_info().value())),
        cache(std::move(KvCache::make(*device, {.shape = {1, 1, 2, 2, DType::f32},
                                                .page_size = sizes.page_size,
                                                .num_pages = 64})
                            .value())) {
    Result<Scheduler> made = Scheduler::make(cache, {.max_batch_tokens = sizes.max_batch_tokens,
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
          EXPECT_EQ(alone.scheduler->num_cached_tokens(next),
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
