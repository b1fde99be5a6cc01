#include "engine/cache_pages.h"

#include <gtest/gtest.h>

namespace headrace::engine {
namespace {

constexpr std::int64_t kGib = std::int64_t{1} << 30;

// Llama 3 8B: 2 MiB a page.
PageNeeds needs_of(std::int64_t max_tokens, std::int64_t max_num_seqs) {
  KvShape kv{};
  kv.num_layers = 32;
  kv.num_kv_heads = 8;
  kv.head_dim = kv.head_dim_v = 128;
  kv.dtype = kv.k_dtype = kv.v_dtype = DType::bf16;
  return {.shape = {.kv = kv, .layout = KvLayout::nhd, .page_size = 16, .num_pages = 0},
          .max_tokens = max_tokens,
          .max_num_seqs = max_num_seqs};
}

std::int64_t pages(const PageNeeds& needs, std::int64_t free_bytes) {
  const auto fit = pages_that_fit(needs, static_cast<std::size_t>(free_bytes));
  EXPECT_TRUE(fit.ok()) << fit.failure().message;
  return fit.value();
}

TEST(EnginePages, AreThoseOfAllSequencesWhereMemoryHasRoom) {
  EXPECT_EQ(pages(needs_of(4096, 32), 70 * kGib), 32 * 256);
  EXPECT_EQ(pages(needs_of(4100, 32), 70 * kGib), 32 * 257) << "a sequence has whole pages";
  // Exactly 90 % of what is free, and one byte less.
  const std::int64_t all = 4 * 256 * (std::int64_t{2} << 20);
  EXPECT_EQ(pages(needs_of(4096, 4), all / 9 * 10 + 10), 1024);
  EXPECT_EQ(pages(needs_of(4096, 4), all / 9 * 10 - 10), 1023);
}

TEST(EnginePages, LeaveATenthOfTheMemory) {
  EXPECT_EQ(pages(needs_of(131072, 256), 60 * kGib), 60 * 1024 * 9 / 10 / 2);
  PageNeeds needs = needs_of(131072, 256);
  needs.other_bytes = 4 * kGib;
  EXPECT_EQ(pages(needs, 60 * kGib), (60 * 1024 * 9 / 10 - 4 * 1024) / 2);
}

TEST(EnginePages, HaveRoomForCachedPrefixes) {
  EXPECT_EQ(pages(needs_of(4096, 1), 70 * kGib), 4 * 256);
  EXPECT_EQ(pages(needs_of(4096, 1), kGib), 460) << "what fits, not all four";
}

// Planes are aligned, so bytes do not grow evenly.
TEST(EnginePages, AreTheMostThatFit) {
  PageNeeds needs = needs_of(512, 100);
  needs.shape.kv.num_layers = 3;
  needs.shape.kv.num_kv_heads = 1;
  needs.shape.kv.head_dim = needs.shape.kv.head_dim_v = 8;
  needs.shape.page_size = 1;
  for (std::int64_t free = 60000; free < 4000000; free += 9973) {
    needs.shape.num_pages = pages(needs, free);
    EXPECT_LE(KvPages::num_bytes(needs.shape), free * 9 / 10);
    ++needs.shape.num_pages;
    if (needs.shape.num_pages > 51200) continue;  // all that are wanted
    EXPECT_GT(KvPages::num_bytes(needs.shape), free * 9 / 10);
  }
}

TEST(EnginePages, OfADeviceThatDoesNotSayAreAll) {
  const auto all = pages_that_fit(needs_of(131072, 256), SIZE_MAX);
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all.value(), 256 * 8192);
}

TEST(EnginePages, AreBoundedByTheNumbersOfPages) {
  EXPECT_EQ(pages_that_fit(needs_of(INT64_MAX / 2, INT64_MAX / 2), SIZE_MAX).value(), INT32_MAX);
}

TEST(EnginePages, OneSequenceHasToFit) {
  EXPECT_EQ(pages(needs_of(8192, 256), kGib / 9 * 10 + 10), 512);
  const auto none = pages_that_fit(needs_of(8192, 256), static_cast<std::size_t>(kGib));
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.failure().code, ErrorCode::out_of_memory);
  EXPECT_EQ(none.failure().message,
            "num_pages=0: the keys and values of one sequence of max_tokens=8192 take 1024 MiB, "
            "and all may take 921 MiB, 90 % of the 1024 MiB that are free on the GPU; pass a "
            "smaller max_tokens, codes as k_dtype and v_dtype, or a number of pages, or free "
            "device memory");
}

}  // namespace
}  // namespace headrace::engine
