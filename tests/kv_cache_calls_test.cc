// Random calls of the paged KV cache through the public API, right and wrong ones.
#include <gtest/gtest.h>

#include <iterator>
#include <regex>
#include <string>
#include <vector>

#include "headrace/kv_cache.hpp"
#include "support/random.h"
#include "support/small_kv_cache.h"

namespace {

using headrace::KvCache;
using headrace::testing::kSmallKvCache;
using headrace::testing::Random;
using Tokens = std::vector<std::int32_t>;

// Calls whose arguments are drawn by kind: right ones, and every kind of wrong one. A call works,
// or says why not and changes nothing.
class RandomCalls : public ::testing::Test {
 protected:
  std::int64_t draw_id() {
    if (ids_.empty() || random_.chance(20)) {
      const std::int64_t wrong[] = {0, -1, freed_, 1 << 30, INT64_MAX, INT64_MIN};
      return random_.pick(wrong);
    }
    return ids_[static_cast<std::size_t>(random_.between(0, std::ssize(ids_) - 1))];
  }
  std::int64_t draw_count() {
    const std::int64_t small = random_.between(0, 9);
    const std::int64_t kinds[] = {small, small, small,     small,     20,
                                  33,    -1,    INT32_MAX, INT64_MAX, INT64_MIN};
    return random_.pick(kinds);
  }
  Tokens draw_tokens() {
    Tokens tokens(static_cast<std::size_t>(random_.between(0, random_.chance(20) ? 40 : 9)));
    for (auto& token : tokens) token = static_cast<std::int32_t>(random_.between(0, 1));
    if (!tokens.empty() && random_.chance(10)) tokens.back() = -1;
    return tokens;
  }
  headrace_status call_once();
  headrace_status add(std::span<const std::int32_t> tokens);
  headrace_status fork(std::int64_t id);
  headrace_status free(std::int64_t id);
  headrace_status fill_batch();
  std::string state() const;

  Random random_{7};
  std::vector<std::int64_t> ids_;
  std::int64_t freed_ = 0;
  KvCache cache_{kSmallKvCache};
};

headrace_status RandomCalls::add(std::span<const std::int32_t> tokens) {
  const auto salt = static_cast<std::uint64_t>(random_.between(0, 1));
  std::int64_t id = 0;
  const headrace_status status =
      headrace_kv_cache_add(cache_.get(), tokens.data(), tokens.size(), salt, &id, nullptr);
  if (status == HEADRACE_OK) ids_.push_back(id);
  return status;
}

headrace_status RandomCalls::fork(std::int64_t id) {
  std::int64_t fork = 0;
  const headrace_status status = headrace_kv_cache_fork(cache_.get(), id, &fork);
  if (status == HEADRACE_OK) ids_.push_back(fork);
  return status;
}

headrace_status RandomCalls::free(std::int64_t id) {
  const headrace_status status = headrace_kv_cache_free(cache_.get(), id);
  if (status == HEADRACE_OK) freed_ = id;
  std::erase(ids_, freed_);
  return status;
}

headrace_status RandomCalls::call_once() {
  headrace_kv_cache* const cache = cache_.get();
  const Tokens tokens = draw_tokens();
  const std::int64_t id = draw_id();
  const bool has_room = std::ssize(ids_) < 8;
  switch (random_.between(0, 9)) {
    case 0:
      if (has_room) return add(tokens);
      [[fallthrough]];
    case 1:
      if (has_room) return fork(id);
      [[fallthrough]];
    case 2:
    case 3:
      return headrace_kv_cache_reserve(cache, id, draw_count(), nullptr);
    case 4:
      return headrace_kv_cache_commit(cache, id, tokens.data(), tokens.size());
    case 5:
      return headrace_kv_cache_truncate(cache, id, draw_count());
    case 6: {
      std::vector<std::int64_t> positions(static_cast<std::size_t>(random_.between(0, 3)));
      for (auto& position : positions) position = draw_count();
      return headrace_kv_cache_move(cache, id, positions.data(), positions.size(), nullptr);
    }
    case 7:
      return headrace_kv_cache_swap_out(cache, id, nullptr);
    case 8:
      return random_.chance(50) ? headrace_kv_cache_swap_in(cache, id, nullptr) : free(id);
    default:
      return fill_batch();
  }
}

// The arrays end at the sizes that the call names: the sanitizers look.
headrace_status RandomCalls::fill_batch() {
  const auto n = static_cast<std::size_t>(random_.between(0, 3));
  std::vector<std::int64_t> sequences(n);
  Tokens num_tokens(n), seqused_k(n);
  for (auto& sequence : sequences) sequence = draw_id();
  for (auto& count : num_tokens) count = static_cast<std::int32_t>(random_.between(-1, 3));
  headrace_kv_batch batch;
  headrace_kv_batch_init(&batch);
  batch.sequences = sequences.data();
  batch.num_tokens = num_tokens.data();
  const std::int64_t wrong[] = {-1, std::int64_t{1} << 31, INT64_MAX, INT64_MIN};
  batch.num_sequences = random_.chance(90) ? std::ssize(sequences) : random_.pick(wrong);
  batch.max_pages = draw_count();
  const bool has_table = batch.max_pages >= 0 && batch.max_pages <= 1000;
  Tokens block_table(has_table ? n * static_cast<std::size_t>(batch.max_pages) : 0);
  std::vector<std::int64_t> slots(static_cast<std::size_t>(random_.between(0, 5)));
  batch.block_table = has_table ? block_table.data() : nullptr;
  batch.seqused_k = seqused_k.data();
  batch.slot_mapping = random_.chance(50) ? slots.data() : nullptr;
  batch.num_slots = static_cast<std::int64_t>(slots.size());
  return headrace_kv_cache_fill_batch(cache_.get(), &batch);
}

// All that can be read about the cache.
std::string RandomCalls::state() const {
  const auto bytes_of = [](const auto& x) {
    return std::string(reinterpret_cast<const char*>(&x), sizeof x);
  };
  std::string text = bytes_of(cache_.stats());
  for (const std::int64_t id : ids_) {
    const headrace_kv_sequence_info info = cache_.info(id);
    text += bytes_of(info);
    Tokens row(8);
    headrace_kv_batch batch;
    headrace_kv_batch_init(&batch);
    const std::int32_t zero = 0;
    batch.sequences = &id;
    batch.num_tokens = &zero;
    batch.num_sequences = 1;
    batch.max_pages = std::ssize(row);
    batch.block_table = row.data();
    EXPECT_EQ(headrace_kv_cache_fill_batch(cache_.get(), &batch) == HEADRACE_OK, !info.is_swapped);
    for (const std::int32_t page : row) text += bytes_of(page);
  }
  return text;
}

TEST_F(RandomCalls, WorkOrSayWhyNot) {
  const std::regex form(R"(^[a-z_]+(\[\d+\])?(=-?\d+)?: [^;]+; .+$)");
  int num_ok = 0, num_invalid = 0, num_exhausted = 0;
  for (int i = 0; i < 5000 && !HasFailure(); ++i) {
    const std::string before = state();
    const headrace_status status = call_once();
    const std::string text = headrace_last_error();
    num_ok += status == HEADRACE_OK;
    num_invalid += status == HEADRACE_INVALID_ARGUMENT;
    num_exhausted += status == HEADRACE_OUT_OF_MEMORY;
    if (status == HEADRACE_OK) continue;
    EXPECT_TRUE(std::regex_match(text, form)) << text;
    EXPECT_EQ(state(), before) << text;
  }
  EXPECT_EQ(num_ok + num_invalid + num_exhausted, 5000);
  EXPECT_GT(num_ok, 500);
  EXPECT_GT(num_invalid, 500);
  EXPECT_GT(num_exhausted, 20);
}
}  // namespace
