// Rules of the paged cache, one by one. kv_cache_model_test.cc compares random operations with a
// naive cache.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/math.h"
#include "tests/support/kv_cache_fixture.h"

namespace headrace {
namespace {

using testing::iota;
using testing::KvCaches;
using testing::Tokens;
constexpr std::int64_t kPageSize = testing::kPageSize;

// ---- prefix hits ----

TEST_F(KvCaches, APromptBeginsWithCachedPages) {
  const Tokens prompt = iota(10, 11);
  const std::int64_t first = add_all(prompt);
  const KvCache::Added second = cache_->add(prompt, 0).value();
  EXPECT_EQ(second.num_cached, 8);
  const Tokens pages = table(first);
  EXPECT_EQ(table(second.sequence), (Tokens{pages[0], pages[1]}));
  EXPECT_EQ(cache_->stats().num_shared_pages, 2);
  EXPECT_EQ(cache_->stats().num_queried_tokens, 22);
  EXPECT_EQ(cache_->stats().num_hit_tokens, 8);
}

TEST_F(KvCaches, AHitLeavesOneTokenToCompute) {
  add_all(iota(0, 8));
  EXPECT_EQ(cache_->add(iota(0, 8), 0).value().num_cached, 4);
  EXPECT_EQ(cache_->add(iota(0, 9), 0).value().num_cached, 8);
  EXPECT_EQ(cache_->add(iota(0, 4), 0).value().num_cached, 0);
  EXPECT_EQ(cache_->add({}, 0).value().num_cached, 0);
}

TEST_F(KvCaches, SaltsShareNoPage) {
  add_all(iota(0, 8), 1);
  EXPECT_EQ(cache_->add(iota(0, 9), 2).value().num_cached, 0);
  EXPECT_EQ(cache_->add(iota(0, 9), 1).value().num_cached, 8);
}

TEST_F(KvCaches, PagesOfFreedSequencesAreFoundUntilTheyAreReused) {
  const std::int64_t first = add_all(iota(0, 8));
  const Tokens pages = table(first);
  ASSERT_FALSE(cache_->free(first));
  const KvCache::Added again = cache_->add(iota(0, 9), 0).value();
  EXPECT_EQ(again.num_cached, 8);
  EXPECT_EQ(table(again.sequence), pages);
  ASSERT_FALSE(cache_->free(again.sequence));
  const std::int64_t large = add_all(iota(100, 8 * kPageSize));  // takes every page
  EXPECT_EQ(cache_->stats().num_evictions, 2);
  ASSERT_FALSE(cache_->free(large));
  EXPECT_EQ(cache_->add(iota(0, 9), 0).value().num_cached, 0);
}

TEST_F(KvCaches, WithoutAPrefixCacheNothingIsFoundAndFreedPagesAreTakenFirst) {
  options_.has_prefix_cache = false;
  *cache_ = std::move(KvCache::make(*device_, options_).value());
  const std::int64_t first = add_all(iota(0, 8));
  Tokens pages = table(first);
  EXPECT_EQ(cache_->add(iota(0, 9), 0).value().num_cached, 0);
  EXPECT_EQ(cache_->stats().num_cached_pages, 0);
  ASSERT_FALSE(cache_->free(first));
  Tokens again = table(add_all(iota(0, 8)));
  std::ranges::sort(pages);
  std::ranges::sort(again);
  EXPECT_EQ(again, pages);
}

TEST_F(KvCaches, TheEndOfASequenceIsEvictedBeforeItsBeginning) {
  ASSERT_FALSE(cache_->free(add_all(iota(0, 8 * kPageSize))));
  add_all(iota(100, 3 * kPageSize));
  EXPECT_EQ(cache_->add(iota(0, 8 * kPageSize), 0).value().num_cached, 5 * kPageSize);
}

// Pages that hold no whole page of a prefix are reused before those that do.
TEST_F(KvCaches, PartlyFilledPagesAreReusedFirst) {
  ASSERT_FALSE(cache_->free(add_all(iota(0, 8))));
  const std::int64_t partial = add_all(iota(50, 1));
  const Tokens page = table(partial);
  ASSERT_FALSE(cache_->free(partial));
  EXPECT_EQ(cache_->allocator().free_pages().front(), page[0]);
}

// A hit in the free list is not available for the rest of the prompt: reserve() must neither evict
// it nor count it.
TEST_F(KvCaches, HitsAreTakenBeforePagesAreAllocated) {
  ASSERT_FALSE(cache_->free(add_all(iota(0, 2 * kPageSize))));
  add_all(iota(100, 5 * kPageSize));  // one page was never used
  const KvCache::Added added = cache_->add(iota(0, 4 * kPageSize), 0).value();
  EXPECT_EQ(added.num_cached, 2 * kPageSize);
  EXPECT_EQ(cache_->allocator().num_free(), 1);
  expect_failure(cache_->reserve(added.sequence, 2 * kPageSize, nullptr), ErrorCode::out_of_memory,
                 "num_tokens=8: sequence 3 needs 2 pages, and 1 of 8 are free; free or swap out a "
                 "sequence");
  EXPECT_FALSE(cache_->reserve(added.sequence, kPageSize, nullptr));
  EXPECT_EQ(cache_->stats().num_evictions, 0);
}

TEST_F(KvCaches, FindsACachedPrefixWithoutTakingIt) {
  const std::int64_t sequence = add_all(iota(0, 10));
  EXPECT_EQ(cache_->find(iota(0, 12), 0).num_tokens, 8);
  EXPECT_EQ(cache_->find(iota(0, 8), 0).num_tokens, 8);
  EXPECT_EQ(cache_->find(iota(0, 12), 1).num_tokens, 0);
  EXPECT_EQ(cache_->find(iota(0, 12), 0).num_free_pages, 0);
  ASSERT_FALSE(cache_->free(sequence));
  EXPECT_EQ(cache_->find(iota(0, 12), 0).num_free_pages, 2);
  EXPECT_EQ(cache_->allocator().num_free(), 8);
}

TEST_F(KvCaches, EqualPagesOfTwoSequencesBothStay) {
  const std::int64_t a = add({}), b = add({});
  append(a, iota(0, 4));
  append(b, iota(0, 4));
  EXPECT_NE(table(a), table(b));
  EXPECT_EQ(cache_->stats().num_cached_pages, 2);
  ASSERT_FALSE(cache_->free(b));
  EXPECT_EQ(cache_->add(iota(0, 5), 0).value().num_cached, 4);
}

// ---- copy on write ----

TEST_F(KvCaches, ForksCopyAPartlyFilledPageOnceLess) {
  for (const std::size_t length : {1, 3, 4, 5}) {
    const std::int64_t copies_before = cache_->stats().num_page_copies;
    std::vector<std::int64_t> all = {add({})};
    append(all[0], iota(0, length));
    for (int i = 0; i < 3; ++i) all.push_back(cache_->fork(all[0]).value());
    const auto seed_of = [](std::int64_t id) { return 100 + static_cast<std::uint64_t>(id); };
    for (const std::int64_t sequence : all) append(sequence, {7}, seed_of(sequence));
    const std::int64_t num_copies = length % kPageSize == 0 ? 0 : 3;
    EXPECT_EQ(cache_->stats().num_page_copies - copies_before, num_copies) << length;
    for (const std::int64_t sequence : all) {
      const std::int64_t slot = slot_of(sequence, static_cast<std::int64_t>(length));
      EXPECT_TRUE(holds(slot, seed_of(sequence)));
      EXPECT_TRUE(slot % kPageSize == 0 || holds(slot - 1, length));
      ASSERT_FALSE(cache_->free(sequence));
    }
  }
}

TEST_F(KvCaches, ATruncatedForkDoesNotWriteIntoAFullPage) {
  const std::int64_t parent = add_all(iota(0, 8));
  const std::int64_t fork = cache_->fork(parent).value();
  ASSERT_FALSE(cache_->truncate(fork, 6));
  append(fork, {60, 61}, 100);
  EXPECT_EQ(cache_->stats().num_page_copies, 1);
  for (std::int64_t i = 0; i < 8; ++i)
    EXPECT_TRUE(holds(slot_of(parent, i), static_cast<std::uint64_t>(1 + i)));
  EXPECT_EQ(cache_->add(iota(0, 9), 0).value().num_cached, 8);
  EXPECT_EQ(cache_->add(Tokens{0, 1, 2, 3, 4, 5, 60, 61, 0}, 0).value().num_cached, 8);
}

// The only holder of a full page truncates into it and writes: no copy, and the old contents can no
// longer be found.
TEST_F(KvCaches, ATruncatedPageLeavesThePrefixCacheWhenItIsWritten) {
  const std::int64_t sequence = add_all(iota(0, 8));
  ASSERT_FALSE(cache_->truncate(sequence, 6));
  EXPECT_EQ(cache_->add(iota(0, 9), 0).value().num_cached, 8);  // still whole
  ASSERT_FALSE(cache_->free(2));
  ASSERT_FALSE(cache_->reserve(sequence, 1, nullptr));
  EXPECT_EQ(cache_->add(iota(0, 9), 0).value().num_cached, 4);
  EXPECT_EQ(cache_->stats().num_page_copies, 0);
}

TEST_F(KvCaches, AForkNeedsItsParentsSlotsToBeCommitted) {
  const std::int64_t sequence = add({});
  ASSERT_FALSE(cache_->reserve(sequence, 2, nullptr));
  EXPECT_EQ(cache_->fork(sequence).failure().message,
            "sequence=1: has 2 reserved slots, which a fork would share; commit their tokens or "
            "truncate the sequence first");
  ASSERT_FALSE(cache_->truncate(sequence, 0));
  EXPECT_TRUE(cache_->fork(sequence).ok());
}

// ---- draft trees ----

TEST_F(KvCaches, MovesAcceptedNodesAndReturnsTheOtherPages) {
  const std::int64_t sequence = add_all(iota(0, 3));
  ASSERT_FALSE(cache_->reserve(sequence, 10, nullptr));
  std::uint64_t seed = 50;  // position 3 holds 50, position 12 holds 59
  for (const std::int64_t slot : slots(sequence, 10)) write(slot, seed++);
  EXPECT_EQ(cache_->info(sequence).value().num_pages, 4);
  const std::int64_t accepted[] = {3, 5, 6, 11};
  ASSERT_FALSE(cache_->move(sequence, accepted, nullptr));
  EXPECT_EQ(cache_->info(sequence).value().num_reserved, 4);
  EXPECT_EQ(cache_->info(sequence).value().num_pages, 2);
  EXPECT_EQ(cache_->stats().num_moved_tokens, 3);
  const auto moved = slots(sequence, 4);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_TRUE(holds(moved[i], static_cast<std::uint64_t>(47 + accepted[i])));
  ASSERT_FALSE(cache_->commit(sequence, iota(3, 4)));
}

TEST_F(KvCaches, MovesReservedPositionsInOrderOnly) {
  const std::int64_t sequence = add_all(iota(0, 3));
  ASSERT_FALSE(cache_->reserve(sequence, 3, nullptr));
  const std::vector<std::vector<std::int64_t>> wrong = {{2}, {6}, {4, 4}, {5, 4}, {-1}, {3, 6}};
  for (const auto& positions : wrong) {
    const Status status = cache_->move(sequence, positions, nullptr);
    ASSERT_TRUE(status);
    EXPECT_EQ(status->code, ErrorCode::invalid_argument);
    EXPECT_EQ(cache_->info(sequence).value().num_reserved, 3);
  }
  expect_failure(
      cache_->move(sequence, wrong[5], nullptr), ErrorCode::invalid_argument,
      "positions[1]=6: must be 3 to 5, the reserved positions of sequence 1, and above the "
      "one before it; sort the positions, or reserve more slots first");
  ASSERT_FALSE(cache_->move(sequence, {}, nullptr));
  EXPECT_EQ(cache_->info(sequence).value().num_reserved, 0);
}

TEST_F(KvCaches, KeysByComponentAreNotMoved) {
  options_.shape.has_components = true;
  cache_ = std::make_unique<KvCache>(std::move(KvCache::make(*device_, options_).value()));
  const std::int64_t sequence = add_all(iota(0, 3));
  ASSERT_FALSE(cache_->reserve(sequence, 3, nullptr));
  const std::int64_t accepted[] = {3, 5};
  expect_failure(cache_->move(sequence, accepted, nullptr), ErrorCode::invalid_argument,
                 "num_positions=2: the cache has keys by component, of which single tokens are not "
                 "moved; truncate the sequence and compute the tokens anew");
  const std::int64_t in_place[] = {3, 4};
  ASSERT_FALSE(cache_->move(sequence, in_place, nullptr));
  EXPECT_EQ(cache_->info(sequence).value().num_reserved, 2);
}

// Single tokens of codes with zero points are moved within a group alone; the message says how
// many.
TEST_F(KvCaches, MovesOfCodesEndBeforeAGroup) {
  options_.shape.head_dim = options_.shape.head_dim_v = 32;
  options_.shape.dtype = DType::f32;
  options_.shape.k_dtype = options_.shape.v_dtype = DType::u4x2;
  options_.page_size = 32;
  options_.num_recent_pages = 8;
  cache_ = std::make_unique<KvCache>(std::move(KvCache::make(*device_, options_).value()));
  for (const std::int64_t length : {3, 28}) {
    const std::int64_t sequence = add_all(iota(0, length));
    const std::int64_t most = 32 - length - 1;
    ASSERT_FALSE(cache_->reserve(sequence, most + 2, nullptr));
    std::vector<std::int64_t> positions;
    for (std::int64_t i = 0; i <= most; ++i) positions.push_back(length + 1 + i);
    expect_failure(cache_->move(sequence, positions, nullptr), ErrorCode::invalid_argument,
                   format_text("num_positions={}: would complete a group of 32 keys, which the "
                               "append of its last token quantises; move at most {} positions and "
                               "compute the tokens behind them anew",
                               most + 1, most));
    positions.pop_back();
    EXPECT_FALSE(cache_->move(sequence, positions, nullptr));
    ASSERT_FALSE(cache_->free(sequence));
  }
}

// ---- swapping ----

TEST_F(KvCaches, SwapsPagesOutAndIn) {
  const std::int64_t sequence = add_all(iota(0, 10));
  ASSERT_FALSE(cache_->swap_out(sequence, nullptr));
  EXPECT_EQ(cache_->stats().num_used_pages, 0);
  EXPECT_EQ(cache_->stats().num_free_host_pages, 0);
  EXPECT_EQ(cache_->stats().num_swapped_sequences, 1);
  EXPECT_EQ(cache_->info(sequence).value().length, 10);
  const std::int64_t other = add_all(iota(100, 7 * kPageSize));  // overwrites two of its pages
  ASSERT_FALSE(cache_->free(other));
  ASSERT_FALSE(cache_->swap_in(sequence, nullptr));
  EXPECT_EQ(cache_->stats().num_pages_swapped_out, 3);
  EXPECT_EQ(cache_->stats().num_pages_swapped_in, 2);  // the first page was still cached
  EXPECT_EQ(cache_->stats().num_free_host_pages, 3);
  for (std::int64_t i = 0; i < 10; ++i)
    EXPECT_TRUE(holds(slot_of(sequence, i), static_cast<std::uint64_t>(1 + i)));
  EXPECT_EQ(cache_->add(iota(0, 9), 0).value().num_cached, 8);
}

TEST_F(KvCaches, ASwappedSequenceIsOnlySwappedInOrFreed) {
  const std::int64_t sequence = add_all(iota(0, 5));
  expect_failure(cache_->swap_in(sequence, nullptr), ErrorCode::invalid_argument,
                 "sequence=1: is not swapped out; it can be used as it is");
  ASSERT_FALSE(cache_->swap_out(sequence, nullptr));
  const std::string text = "sequence=1: is swapped out; swap it in first";
  const std::int32_t zero = 0;
  expect_failure(cache_->reserve(sequence, 1, nullptr), ErrorCode::invalid_argument, text);
  expect_failure(cache_->commit(sequence, {}), ErrorCode::invalid_argument, text);
  expect_failure(cache_->move(sequence, {}, nullptr), ErrorCode::invalid_argument, text);
  expect_failure(cache_->truncate(sequence, 0), ErrorCode::invalid_argument, text);
  expect_failure(cache_->fork(sequence).failure(), ErrorCode::invalid_argument, text);
  expect_failure(cache_->swap_out(sequence, nullptr), ErrorCode::invalid_argument, text);
  expect_failure(cache_->fill_batch({.sequences = {&sequence, 1}, .num_tokens = {&zero, 1}}),
                 ErrorCode::invalid_argument, text);
  ASSERT_FALSE(cache_->free(sequence));
  EXPECT_EQ(cache_->stats().num_free_host_pages, 3);
}

TEST_F(KvCaches, SaysWhenHostPagesAreMissing) {
  const std::int64_t sequence = add_all(iota(0, 13));
  expect_failure(cache_->swap_out(sequence, nullptr), ErrorCode::out_of_memory,
                 "sequence=1: needs 4 host pages, and 3 of num_host_pages=3 are free; free a "
                 "swapped sequence, or free this one and compute it anew");
  EXPECT_EQ(cache_->info(sequence).value().num_pages, 4);
}

// The pages that a swapped sequence finds in the prefix cache may be the last free ones.
TEST_F(KvCaches, SwapInCountsHitsInTheFreeList) {
  const std::int64_t sequence = add_all(iota(0, 11));
  ASSERT_FALSE(cache_->swap_out(sequence, nullptr));
  const std::int64_t other = add_all(iota(100, 6 * kPageSize));
  expect_failure(cache_->swap_in(sequence, nullptr), ErrorCode::out_of_memory,
                 "sequence=1: needs 3 pages, and 2 of 8 are free; free or swap out another "
                 "sequence");
  ASSERT_FALSE(cache_->truncate(other, 5 * kPageSize));
  EXPECT_FALSE(cache_->swap_in(sequence, nullptr));
}

// ---- room ----

struct Room {
  std::int64_t length, num_tokens, num_pages, num_recent_pages;
  bool has_codes, is_forked;
};

void expect_exact_room(const Room& room) {
  constexpr std::int64_t kGroup = recent_group_of(DType::i8);  // and tokens of a page
  const std::unique_ptr<Device> device = make_host_device(cpu_info().value());
  KvShape shape = {1, 1, 2, 2, DType::f16};
  if (room.has_codes) shape.k_dtype = shape.v_dtype = DType::i8;
  KvCache cache = std::move(KvCache::make(*device, {.shape = shape,
                                                    .page_size = kGroup,
                                                    .num_pages = room.num_pages,
                                                    .num_recent_pages = room.num_recent_pages})
                                .value());
  const std::int64_t sequence = cache.add({}, 0).value().sequence;
  for (std::int64_t i = 0; i < room.length; ++i) {
    const std::int32_t token = 7;
    ASSERT_FALSE(cache.reserve(sequence, 1, nullptr));
    ASSERT_FALSE(cache.commit(sequence, {&token, 1}));
  }
  if (room.is_forked) {
    ASSERT_TRUE(cache.fork(sequence).ok());
  }
  const std::int64_t num_pages = cache.allocator().num_free(),
                     num_recent = cache.recent_allocator().num_free();
  const std::int64_t has_partial = room.length % kGroup != 0,
                     num_copies = has_partial * room.is_forked;
  const std::int64_t num_groups =
      ceil_div(room.length + room.num_tokens, kGroup) - room.length / kGroup;
  const std::int64_t num_new = num_groups - has_partial + num_copies,
                     num_new_recent = room.has_codes ? num_new : 0;
  const bool is_missing = num_new > num_pages || num_new_recent > num_recent;
  EXPECT_EQ(cache.reserve(sequence, room.num_tokens, nullptr).has_value(), is_missing);
  EXPECT_EQ(num_pages - cache.allocator().num_free(), is_missing ? 0 : num_new);
  EXPECT_EQ(num_recent - cache.recent_allocator().num_free(), is_missing ? 0 : num_new_recent);
}

// Pages of codes and recent pages, those of new tokens and those that are copied because a fork
// shares them: a call fails if one is missing, and only then.
TEST(KvCacheRoom, ReservesWhatIsFreeAndNoMore) {
  for (const bool has_codes : {false, true})
    for (const bool is_forked : {false, true})
      for (const std::int64_t length : {0, 1, 15, 16, 17, 31, 32})
        for (const std::int64_t num_tokens : {1, 2, 15, 16, 17, 33})
          for (const std::int64_t num_pages : {3, 4, 5, 6})
            for (const std::int64_t num_recent_pages : {1, 2, 3, 4, 5}) {
              if (!has_codes && num_recent_pages > 1) continue;
              SCOPED_TRACE(format_text("{} tokens after {}, {} pages, {} recent ones{}", num_tokens,
                                       length, num_pages, num_recent_pages,
                                       is_forked ? ", forked" : ""));
              expect_exact_room({length, num_tokens, num_pages, has_codes ? num_recent_pages : 0,
                                 has_codes, is_forked});
            }
}

}  // namespace
}  // namespace headrace
