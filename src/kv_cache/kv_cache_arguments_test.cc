// Arguments and limits of the paged cache: errors that change nothing, and the arrays of a step.
#include <gtest/gtest.h>

#include <utility>

#include "tests/support/forwarding_device.h"
#include "tests/support/kv_cache_fixture.h"

namespace headrace {
namespace {

using testing::iota;
using testing::KvCaches;
using testing::Tokens;
constexpr std::int64_t kPageSize = testing::kPageSize;

TEST_F(KvCaches, ReserveIsAllOrNothing) {
  const std::int64_t sequence = add_all(iota(0, 5));
  const std::int64_t fork = cache_->fork(sequence).value();
  const Tokens before = cache_->allocator().free_pages();
  ASSERT_EQ(before.size(), 6u);
  // Three slots in the shared page and six pages: with the copy one page too many.
  expect_failure(cache_->reserve(fork, 3 + 6 * kPageSize, nullptr), ErrorCode::out_of_memory,
                 "num_tokens=27: sequence 2 needs 7 pages, and 6 of 8 are free; free or swap out a "
                 "sequence");
  EXPECT_EQ(cache_->allocator().free_pages(), before);
  EXPECT_EQ(table(fork), table(sequence));
  EXPECT_EQ(cache_->info(fork).value().num_reserved, 0);
  EXPECT_FALSE(cache_->reserve(fork, 3 + 5 * kPageSize, nullptr));
}

TEST_F(KvCaches, ReservesAtLeastTheSlots) {
  const std::int64_t sequence = add({});
  for (const std::int64_t num_tokens : {6, 2, 6, 9})
    ASSERT_FALSE(cache_->reserve(sequence, num_tokens, nullptr));
  EXPECT_EQ(cache_->info(sequence).value().num_reserved, 9);
  EXPECT_EQ(cache_->info(sequence).value().num_pages, 3);
  ASSERT_FALSE(cache_->commit(sequence, iota(0, 2)));
  EXPECT_EQ(cache_->info(sequence).value().num_reserved, 7);
  const std::string text =
      "num_tokens={}: must be 0 to 30: sequence 1 holds 2 of at most 32 "
      "tokens; shorten it or create the cache with more pages";
  for (const std::int64_t wrong : {std::int64_t{-1}, std::int64_t{31}, INT64_MAX, INT64_MIN})
    expect_failure(cache_->reserve(sequence, wrong, nullptr), ErrorCode::invalid_argument,
                   format_text(text, wrong));
}

TEST_F(KvCaches, APromptFitsTheCache) {
  EXPECT_EQ(cache_->add(iota(0, 33), 0).failure().message,
            "num_tokens=33: a sequence has at most 32 tokens; shorten it or create the cache with "
            "more pages");
  EXPECT_EQ(cache_->stats().num_sequences, 0);
  add_all(iota(0, 32));
  EXPECT_EQ(cache_->stats().num_unused_slots, 0);
}

TEST_F(KvCaches, CommitsReservedSlotsOnly) {
  const std::int64_t sequence = add({});
  ASSERT_FALSE(cache_->reserve(sequence, 2, nullptr));
  expect_failure(cache_->commit(sequence, iota(0, 3)), ErrorCode::invalid_argument,
                 "num_tokens=3: sequence 1 has 2 reserved slots; reserve slots before keys and "
                 "values are written");
  expect_failure(cache_->commit(sequence, Tokens{5, -1}), ErrorCode::invalid_argument,
                 "tokens[1]=-1: must be 0 or more; pass ids of the vocabulary");
  EXPECT_EQ(cache_->info(sequence).value().length, 0);
  EXPECT_EQ(cache_->add(Tokens{-7}, 0).failure().message,
            "tokens[0]=-7: must be 0 or more; pass ids of the vocabulary");
  EXPECT_EQ(cache_->stats().num_sequences, 1);
}

TEST_F(KvCaches, TruncatesToWhatItHolds) {
  const std::int64_t sequence = add_all(iota(0, 9));
  for (const std::int64_t wrong : {std::int64_t{-1}, std::int64_t{10}, INT64_MAX})
    expect_failure(cache_->truncate(sequence, wrong), ErrorCode::invalid_argument,
                   format_text("length={}: sequence 1 holds 9 tokens; pass 0 to 9", wrong));
  ASSERT_FALSE(cache_->truncate(sequence, 8));
  EXPECT_EQ(cache_->info(sequence).value().num_pages, 2);
  ASSERT_FALSE(cache_->truncate(sequence, 0));
  EXPECT_EQ(cache_->stats().num_used_pages, 0);
}

TEST_F(KvCaches, IdsAreNotUsedTwice) {
  const std::int64_t sequence = add_all(iota(0, 5));
  ASSERT_FALSE(cache_->free(sequence));
  EXPECT_NE(add({}), sequence);
  const std::string text =
      "sequence=1: is not in this cache; pass an id that add or fork returned and that was not "
      "freed since";
  expect_failure(cache_->free(sequence), ErrorCode::invalid_argument, text);
  expect_failure(cache_->swap_in(sequence, nullptr), ErrorCode::invalid_argument, text);
  expect_failure(cache_->info(sequence).failure(), ErrorCode::invalid_argument, text);
}

TEST_F(KvCaches, FillsTheArraysOfAStep) {
  const std::int64_t a = add_all(iota(0, 6)), b = add({});
  ASSERT_FALSE(cache_->reserve(a, 7, nullptr));  // four pages, of which the step needs three
  ASSERT_FALSE(cache_->reserve(b, 1, nullptr));
  const std::int64_t sequences[] = {b, a};
  const std::int32_t num_tokens[] = {1, 3};
  Tokens block_table(8, -5), seqused_k(2, -5);
  std::vector<std::int64_t> slot_mapping(4, -5);
  const KvBatch batch = {sequences, num_tokens, 4, block_table, seqused_k, slot_mapping};
  ASSERT_FALSE(cache_->fill_batch(batch));
  const Tokens of_a = table(a), of_b = table(b);
  EXPECT_EQ(block_table, (Tokens{of_b[0], 0, 0, 0, of_a[0], of_a[1], of_a[2], 0}));
  EXPECT_EQ(seqused_k, (Tokens{1, 9}));
  EXPECT_EQ(slot_mapping,
            (std::vector<std::int64_t>{of_b[0] * kPageSize, of_a[1] * kPageSize + 2,
                                       of_a[1] * kPageSize + 3, of_a[2] * kPageSize}));
}

TEST_F(KvCaches, ABatchIsCheckedBeforeItIsWritten) {
  const std::int64_t a = add_all(iota(0, 6));
  ASSERT_FALSE(cache_->reserve(a, 2, nullptr));
  const std::int64_t sequences[] = {a, a}, unknown[] = {a, 9};
  const std::int32_t num_tokens[] = {1, 2}, too_many[] = {1, 3}, negative[] = {-1, 1};
  Tokens block_table(4, -5), seqused_k(2, -5);
  std::vector<std::int64_t> slot_mapping(3, -5);
  const KvBatch good = {sequences, num_tokens, 2, block_table, seqused_k, slot_mapping};
  const auto expect = [&](auto change, const std::string& text) {
    KvBatch batch = good;
    change(batch);
    expect_failure(cache_->fill_batch(batch), ErrorCode::invalid_argument, text);
  };
  expect([&](KvBatch& b) { b.sequences = unknown; },
         "sequence=9: is not in this cache; pass an id that add or fork returned and that was not "
         "freed since");
  expect([&](KvBatch& b) { b.num_tokens = too_many; },
         "num_tokens[1]=3: must be 0 to 2, the reserved slots of sequence 1; reserve more first");
  expect([&](KvBatch& b) { b.num_tokens = negative; },
         "num_tokens[0]=-1: must be 0 to 2, the reserved slots of sequence 1; reserve more first");
  expect([&](KvBatch& b) { b.num_tokens = {}; },
         "num_tokens: has 0 entries; pass one for each of the 2 sequences");
  expect([&](KvBatch& b) { b.max_pages = 1; },
         "max_pages=1: sequence 1 has 2 pages; pass at least as many");
  expect([&](KvBatch& b) { b.max_pages = 3; },
         "block_table: has 4 elements; pass 6 (num_sequences * max_pages), or null");
  expect([&](KvBatch& b) { b.seqused_k = b.seqused_k.first(1); },
         "seqused_k: has 1 elements; pass 2 (num_sequences), or null");
  expect([&](KvBatch& b) { b.slot_mapping = b.slot_mapping.first(2); },
         "slot_mapping: has 2 elements; pass 3 (the sum of num_tokens), or null");
  EXPECT_EQ(block_table, Tokens(4, -5));
  EXPECT_EQ(seqused_k, Tokens(2, -5));
  EXPECT_EQ(slot_mapping, std::vector<std::int64_t>(3, -5));
  EXPECT_FALSE(cache_->fill_batch(good));
}

// The host, with copies that fail on request.
class FailingDevice final : public testing::ForwardingDevice {
 public:
  FailingDevice() : ForwardingDevice(make_host_device(cpu_info().value())) {}
  Status copy(std::span<const ByteCopy> copies, Stream stream) override {
    if (is_failing) return Failure{ErrorCode::device_error, "no copies today"};
    return ForwardingDevice::copy(copies, stream);
  }
  bool is_failing = false;
};

TEST(KvCache, KeepsItsSequencesWhenCopiesFail) {
  FailingDevice device;
  auto cache = std::move(KvCache::make(device, {.shape = {2, 2, 3, 2, DType::f32},
                                                .page_size = kPageSize,
                                                .num_pages = 8,
                                                .num_host_pages = 8})
                             .value());
  const auto add_all = [&](const Tokens& tokens) {
    const std::int64_t sequence = cache.add({}, 0).value().sequence;
    EXPECT_FALSE(cache.reserve(sequence, std::ssize(tokens), nullptr));
    EXPECT_FALSE(cache.commit(sequence, tokens));
    return sequence;
  };
  const std::int64_t parent = add_all(iota(0, 6)), swapped = add_all(iota(50, 6));
  const std::int64_t fork = cache.fork(parent).value();
  const std::int64_t draft = add_all(iota(100, 2));
  ASSERT_FALSE(cache.reserve(draft, 3, nullptr));
  ASSERT_FALSE(cache.swap_out(swapped, nullptr));
  ASSERT_FALSE(cache.free(add_all(iota(200, 4 * kPageSize))));  // nothing to hit for swap_in
  const auto state = [&] {
    std::vector<std::int64_t> all = {cache.allocator().num_free(),
                                     cache.host_allocator().num_free()};
    for (const std::int64_t sequence : {parent, swapped, fork, draft}) {
      const KvSequenceInfo info = cache.info(sequence).value();
      all.insert(all.end(), {info.length, info.num_reserved, info.is_swapped});
      for (const std::int32_t page : cache.block_table(sequence)) all.push_back(page);
    }
    return all;
  };
  const auto before = state();
  const std::int64_t positions[] = {3};
  device.is_failing = true;
  for (const Status& status :
       {cache.reserve(fork, 1, nullptr), cache.move(draft, positions, nullptr),
        cache.swap_out(parent, nullptr), cache.swap_in(swapped, nullptr)}) {
    ASSERT_TRUE(status);
    EXPECT_EQ(status->code, ErrorCode::device_error);
  }
  EXPECT_EQ(state(), before);
  device.is_failing = false;
  EXPECT_FALSE(cache.reserve(fork, 1, nullptr));
  EXPECT_FALSE(cache.move(draft, positions, nullptr));
  EXPECT_FALSE(cache.swap_out(parent, nullptr));
  EXPECT_FALSE(cache.swap_in(swapped, nullptr));
}

// The waste that paging promises: half a page for each sequence.
TEST(KvCache, WastesLessThanFourPercentOfLongSequences) {
  const auto device = make_host_device(cpu_info().value());
  auto cache = std::move(
      KvCache::make(*device, {.shape = {1, 1, 1, 1, DType::f16}, .num_pages = 4096}).value());
  testing::Random random(1);
  for (int i = 0; i < 128; ++i) {
    const std::int64_t sequence = cache.add({}, 0).value().sequence;
    const std::int64_t length = random.between(1, 399);  // 200 on average
    // Token by token, as decoding does.
    for (std::int64_t token = 0; token < length; ++token) {
      ASSERT_FALSE(cache.reserve(sequence, 1, nullptr));
      const auto id = static_cast<std::int32_t>(random.between(0, 1 << 20));
      ASSERT_FALSE(cache.commit(sequence, {&id, 1}));
    }
  }
  const KvCacheStats stats = cache.stats();
  const std::int64_t num_slots = stats.num_used_pages * 16;
  EXPECT_GT(stats.num_tokens, 128 * 190);
  EXPECT_EQ(stats.num_tokens + stats.num_unused_slots, num_slots);
  EXPECT_LT(static_cast<double>(stats.num_unused_slots), 0.04 * static_cast<double>(num_slots));
}

TEST(KvCache, ChecksItsOptions) {
  const auto device = make_host_device(cpu_info().value());
  const KvCacheOptions good = {.shape = {2, 2, 3, 2, DType::f32}, .num_pages = 2};
  ASSERT_TRUE(KvCache::make(*device, good).ok());
  const auto expect = [&](auto change, const std::string& text) {
    KvCacheOptions options = good;
    change(options);
    const auto made = KvCache::make(*device, options);
    ASSERT_FALSE(made.ok()) << text;
    EXPECT_EQ(made.failure().code, ErrorCode::invalid_argument);
    EXPECT_EQ(made.failure().message, text);
  };
  using O = KvCacheOptions;
  expect([](O& o) { o.shape.num_layers = 0; },
         "num_layers=0: must be 1 to 2147483647; pass that of the model");
  expect([](O& o) { o.shape.num_kv_heads = -1; },
         "num_kv_heads=-1: must be 1 to 2147483647; pass that of the model");
  expect([](O& o) { o.shape.head_dim = 577; },
         "head_dim=577: must be 1 to 576; pass that of the model");
  expect([](O& o) { o.shape.head_dim_v = 0; },
         "head_dim_v=0: must be 1 to 576; pass that of the model");
  expect([](O& o) { o.page_size = 0; },
         "page_size=0: must be 1 to 2147483647; 16 suits most models");
  expect([](O& o) { o.num_pages = 0; },
         "num_pages=0: must be 1 to 2147483647; page numbers are int32; use larger pages");
  expect([](O& o) { o.num_pages = std::int64_t{1} << 31; },
         "num_pages=2147483648: must be 1 to 2147483647; page numbers are int32; use larger pages");
  expect([](O& o) { o.num_host_pages = -1; },
         "num_host_pages=-1: must be 0 to 2147483647; page numbers are int32; use larger pages");
  for (const DType dtype : {DType::f64, DType::i32, DType::boolean})
    expect([&](O& o) { o.shape.dtype = dtype; },
           format_text("dtype={}: must be f32, f16 or bf16; pass the one that attention reads",
                       dtype_name(dtype)));
}

TEST(KvCache, SaysWhenThereIsNoMemory) {
  const auto device = make_host_device(cpu_info().value());
  KvCacheOptions options = {.shape = {80, 8, 128, 128, DType::f16}, .num_pages = INT32_MAX};
  const auto expect = [&](const std::string& text) {
    const auto made = KvCache::make(*device, options);
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.failure().code, ErrorCode::out_of_memory);
    EXPECT_EQ(made.failure().message, text);
  };
  expect(
      "num_pages=2147483647: no memory for 11258999063183360 bytes of keys and values; pass "
      "fewer pages or a smaller dtype");
  options.page_size = INT32_MAX;  // more bytes than 64 bits count
  expect(
      "num_pages=2147483647: no memory for 9223372036854775807 bytes of keys and values; pass "
      "fewer pages or a smaller dtype");
  options.page_size = 16;
  options.num_pages = 1;
  options.num_host_pages = INT32_MAX;
  expect(
      "num_host_pages=2147483647: no memory for 11258999063183360 bytes of keys and values; "
      "pass fewer pages or a smaller dtype");
}

}  // namespace
}  // namespace headrace
