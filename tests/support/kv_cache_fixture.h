// For tests of the paged cache: a small cache, and sequences with rows that tests choose.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "core/device.h"
#include "kv_cache/kv_cache.h"
#include "support/kv_cache_rows.h"

namespace headrace::testing {

using Tokens = std::vector<std::int32_t>;
inline constexpr std::int64_t kPageSize = 4;

inline Tokens iota(std::int32_t first, std::size_t count) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class KvCaches : public ::testing::Test {
 protected:
  KvCaches() {
    cache_ = std::make_unique<KvCache>(std::move(KvCache::make(*device_, options_).value()));
  }

  std::int64_t add(const Tokens& prompt, std::uint64_t salt = 0) {
    return cache_->add(prompt, salt).value().sequence;
  }
  // Reserves, writes rows that `seed` determines, commits.
  void append(std::int64_t sequence, const Tokens& tokens, std::uint64_t seed = 1) {
    const auto num_tokens = static_cast<std::int64_t>(tokens.size());
    ASSERT_FALSE(cache_->reserve(sequence, num_tokens, nullptr));
    for (const std::int64_t slot : slots(sequence, num_tokens)) write(slot, seed++);
    ASSERT_FALSE(cache_->commit(sequence, tokens));
  }
  std::int64_t add_all(const Tokens& tokens, std::uint64_t salt = 0) {
    const KvCache::Added added = cache_->add(tokens, salt).value();
    append(added.sequence, Tokens(tokens.begin() + added.num_cached, tokens.end()));
    return added.sequence;
  }
  // Of the first reserved slots.
  std::vector<std::int64_t> slots(std::int64_t sequence, std::int64_t num_tokens) const {
    std::vector<std::int64_t> slots(static_cast<std::size_t>(num_tokens));
    const auto count = static_cast<std::int32_t>(num_tokens);
    EXPECT_FALSE(cache_->fill_batch(
        {.sequences = {&sequence, 1}, .num_tokens = {&count, 1}, .slot_mapping = slots}));
    return slots;
  }
  std::int64_t slot_of(std::int64_t sequence, std::int64_t token) const {
    const auto page_idx = static_cast<std::size_t>(token / kPageSize);
    return table(sequence)[page_idx] * kPageSize + token % kPageSize;
  }
  void write(std::int64_t slot, std::uint64_t seed) { rows().write(slot, rows().made(seed)); }
  bool holds(std::int64_t slot, std::uint64_t seed) const {
    return rows().read(slot) == rows().made(seed);
  }
  TokenRows rows() const { return TokenRows(*cache_); }
  Tokens table(std::int64_t sequence) const {
    const auto pages = cache_->block_table(sequence);
    return {pages.begin(), pages.end()};
  }
  void expect_failure(const Status& status, ErrorCode code, const std::string& text) const {
    ASSERT_TRUE(status);
    EXPECT_EQ(status->code, code);
    EXPECT_EQ(status->message, text);
  }

  std::unique_ptr<Device> device_ = make_host_device(cpu_info().value());
  KvCacheOptions options_ = {.shape = {2, 2, 3, 2, DType::f32},
                             .page_size = kPageSize,
                             .num_pages = 8,
                             .num_host_pages = 3};
  std::unique_ptr<KvCache> cache_;
};

}  // namespace headrace::testing
