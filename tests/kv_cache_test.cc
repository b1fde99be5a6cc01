// The paged KV cache through the public API: the shared library, kv_cache.h and kv_cache.hpp.
#include "headrace/kv_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "support/errors.h"
#include "support/small_kv_cache.h"

namespace {

using headrace::DType;
using headrace::KvCache;
using headrace::KvCacheOptions;
using headrace::KvLayout;
using headrace::TensorView;
using headrace::testing::error_of;
using headrace::testing::kSmallKvCache;
using Tokens = std::vector<std::int32_t>;

TEST(KvCacheApi, PagesAreViewsOfTheLayout) {
  for (const KvLayout layout : {KvLayout::nhd, KvLayout::hnd}) {
    KvCacheOptions options = kSmallKvCache;
    options.head_dim_v = 16;
    options.layout = layout;
    const KvCache cache(options);
    EXPECT_NE(cache.k_pages(0).data, cache.k_pages(1).data);
    for (const TensorView& pages : {cache.k_pages(1), cache.v_pages(1)}) {
      const std::int64_t dim = pages.data == cache.k_pages(1).data ? 8 : 16;
      const std::int64_t shape[] = {8, 4, 2, dim};
      EXPECT_EQ(pages.rank, 4);
      EXPECT_TRUE(std::equal(shape, shape + 4, pages.shape));
      EXPECT_EQ(pages.type(), DType::f32);
      EXPECT_EQ(pages.device_type, HEADRACE_CPU);
      EXPECT_EQ(pages.is_contiguous(), layout == KvLayout::nhd);
      EXPECT_TRUE(layout == KvLayout::nhd || pages.permute({0, 2, 1, 3})->is_contiguous());
    }
    EXPECT_EQ(error_of([&] { static_cast<void>(cache.k_pages(2)); }, HEADRACE_INVALID_ARGUMENT),
              "layer=2: must be 0 to 1; pass the index of a layer of the cache");
    error_of([&] { static_cast<void>(cache.v_pages(-1)); }, HEADRACE_INVALID_ARGUMENT);
  }
}

// A prompt, a fork, a draft and a second request with the same prompt.
TEST(KvCacheApi, StepsOfSequences) {
  KvCache cache(kSmallKvCache);
  const Tokens prompt = {1, 2, 3, 4, 5, 6};
  const auto [sequence, num_cached] = cache.add(prompt, 9);
  EXPECT_EQ(num_cached, 0);
  cache.reserve(sequence, 6);
  Tokens block_table(3), seqused_k(1);
  std::vector<std::int64_t> slot_mapping(6);
  const std::int32_t num_tokens = 6;
  cache.fill_batch({.sequences = {&sequence, 1},
                    .num_tokens = {&num_tokens, 1},
                    .max_pages = 3,
                    .block_table = block_table,
                    .seqused_k = seqused_k,
                    .slot_mapping = slot_mapping});
  EXPECT_EQ(seqused_k, Tokens{6});
  EXPECT_EQ(block_table[2], 0);
  for (std::int64_t i = 0; i < 6; ++i)
    EXPECT_EQ(slot_mapping[static_cast<std::size_t>(i)],
              block_table[static_cast<std::size_t>(i / 4)] * 4 + i % 4);
  cache.commit(sequence, prompt);

  const std::int64_t fork = cache.fork(sequence);
  cache.reserve(fork, 3);
  EXPECT_EQ(cache.stats().num_page_copies, 1);
  const std::int64_t accepted[] = {6, 8};
  cache.move(fork, accepted);
  cache.commit(fork, Tokens{7, 8});
  EXPECT_EQ(cache.info(fork).length, 8);
  EXPECT_EQ(cache.info(fork).num_reserved, 0);
  EXPECT_EQ(cache.add(Tokens{1, 2, 3, 4, 5, 6, 7, 8, 9}, 9).num_cached, 8);
  EXPECT_EQ(cache.add(prompt, 8).num_cached, 0);

  cache.swap_out(fork);
  EXPECT_EQ(cache.info(fork).is_swapped, 1);
  cache.swap_in(fork);
  cache.truncate(fork, 1);
  EXPECT_EQ(cache.info(fork).num_pages, 1);
  cache.free(fork);
  error_of([&] { cache.free(fork); }, HEADRACE_INVALID_ARGUMENT);
  const std::string text = error_of([&] { cache.reserve(sequence, 26); }, HEADRACE_OUT_OF_MEMORY);
  EXPECT_EQ(text.find("num_tokens=26: sequence 1 needs "), 0u) << text;
}

// Keys, values and queries of a token are functions of the token alone; any will do.
float value_of(std::int32_t token, std::int64_t i) {
  return static_cast<float>((token * 31 + i * 17) % 23) / 8 - 1;
}

// The outputs of a prompt's last tokens, those that add() did not find.
std::vector<float> outputs_of(KvCache& cache, const Tokens& prompt) {
  const auto [sequence, num_cached] = cache.add(prompt);
  const Tokens rest(prompt.begin() + num_cached, prompt.end());
  const auto num_new = static_cast<std::int32_t>(rest.size());
  const std::int64_t max_pages = 32;
  cache.reserve(sequence, num_new);
  Tokens block_table(max_pages), seqused_k(1);
  std::vector<std::int64_t> slot_mapping(rest.size());
  cache.fill_batch({.sequences = {&sequence, 1},
                    .num_tokens = {&num_new, 1},
                    .max_pages = max_pages,
                    .block_table = block_table,
                    .seqused_k = seqused_k,
                    .slot_mapping = slot_mapping});
  const TensorView k = cache.k_pages(1), v = cache.v_pages(1);
  std::vector<float> q, out(rest.size() * 2 * 8);
  for (std::size_t n = 0; n < rest.size(); ++n)
    for (std::int64_t i = 0; i < 2 * 8; ++i) {
      const std::int64_t page = slot_mapping[n] / k.shape[1], idx = slot_mapping[n] % k.shape[1];
      for (const TensorView& pages : {k, v})
        static_cast<float*>(pages.data)[page * pages.strides[0] + idx * pages.strides[1] +
                                        i / 8 * pages.strides[2] + i % 8] =
            value_of(rest[n], pages.data == k.data ? i : i + 5);
      q.push_back(value_of(rest[n], i + 9));
    }
  headrace::attention_forward({.q = {q.data(), DType::f32, {1, num_new, 2, 8}},
                               .k = k,
                               .v = v,
                               .out = {out.data(), DType::f32, {1, num_new, 2, 8}},
                               .block_table = {block_table.data(), DType::i32, {1, max_pages}},
                               .seqused_k = {seqused_k.data(), DType::i32, {1}}},
                              {.causal = headrace::Causal::bottom_right});
  cache.commit(sequence, rest);
  return out;
}

// Attention over a cache has the same bits for every page size and layout, and whether the
// beginning of the prompt was computed or found.
TEST(KvCacheApi, AttentionDoesNotDependOnPages) {
  Tokens prompt(30);
  for (std::size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<std::int32_t>(i * i % 19);
  KvCacheOptions options = kSmallKvCache;
  options.num_pages = options.page_size = 64;  // the sequence is contiguous in one page
  KvCache whole(options);
  const std::vector<float> expected = outputs_of(whole, prompt);
  for (const KvLayout layout : {KvLayout::nhd, KvLayout::hnd})
    for (const std::int64_t page_size : {1, 3, 16}) {
      options.layout = layout;
      options.page_size = page_size;
      KvCache cache(options);
      EXPECT_EQ(outputs_of(cache, prompt), expected) << page_size;
      const std::vector<float> again = outputs_of(cache, prompt);
      EXPECT_LT(again.size(), expected.size());
      EXPECT_TRUE(std::equal(again.rbegin(), again.rend(), expected.rbegin())) << page_size;
    }
}

// The outputs of the prompt's last tokens, those that add() did not find, computed in steps of
// `chunk` tokens over a cache of codes.
std::vector<float> outputs_of_codes(KvCache& cache, const Tokens& prompt, std::size_t chunk) {
  const auto [sequence, num_cached] = cache.add(prompt);
  const std::int64_t max_pages = 8, max_recent = 8;
  std::vector<float> outs;
  for (auto begin = static_cast<std::size_t>(num_cached); begin < prompt.size(); begin += chunk) {
    const Tokens step(
        prompt.begin() + static_cast<std::ptrdiff_t>(begin),
        prompt.begin() + static_cast<std::ptrdiff_t>(std::min(begin + chunk, prompt.size())));
    const auto num_new = static_cast<std::int32_t>(step.size());
    cache.reserve(sequence, num_new);
    Tokens block_table(max_pages), seqused_k(1), recent_table(max_recent);
    std::vector<std::int64_t> slots(step.size()), recent_slots(step.size());
    cache.fill_batch({.sequences = {&sequence, 1},
                      .num_tokens = {&num_new, 1},
                      .max_pages = max_pages,
                      .block_table = block_table,
                      .seqused_k = seqused_k,
                      .slot_mapping = slots,
                      .max_recent = max_recent,
                      .recent_table = recent_table,
                      .recent_slots = recent_slots});
    std::vector<float> q, k, v, out(step.size() * 2 * 8);
    for (const std::int32_t token : step)
      for (std::int64_t i = 0; i < 2 * 8; ++i) {
        q.push_back(value_of(token, i + 9));
        k.push_back(value_of(token, i));
        v.push_back(value_of(token, i + 5));
      }
    const auto rows = [&](std::vector<float>& x) {
      return TensorView(x.data(), DType::f32, {num_new, 2, 8});
    };
    headrace_quantised_kv codes = cache.quantised(1);
    headrace::kv_append({.k = rows(k),
                         .v = rows(v),
                         .k_pages = cache.k_pages(1),
                         .v_pages = cache.v_pages(1),
                         .slot_mapping = {slots.data(), DType::i64, {num_new}},
                         .quantised = &codes,
                         .recent_slots = {recent_slots.data(), DType::i64, {num_new}}});
    codes.recent_table = TensorView(recent_table.data(), DType::i32, {1, max_recent});
    headrace::attention_forward({.q = {q.data(), DType::f32, {1, num_new, 2, 8}},
                                 .k = cache.k_pages(1),
                                 .v = cache.v_pages(1),
                                 .out = {out.data(), DType::f32, {1, num_new, 2, 8}},
                                 .block_table = {block_table.data(), DType::i32, {1, max_pages}},
                                 .seqused_k = {seqused_k.data(), DType::i32, {1}},
                                 .quantised = &codes},
                                {.causal = headrace::Causal::bottom_right});
    cache.commit(sequence, step);
    outs.insert(outs.end(), out.begin(), out.end());
  }
  return outs;
}

// The bits of a query over codes depend neither on the steps nor on a hit; the values are near
// those of a cache without codes.
TEST(KvCacheApi, AttentionOverCodesDoesNotDependOnSteps) {
  Tokens prompt(70);
  for (std::size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<std::int32_t>(i * i % 19);
  KvCacheOptions options = kSmallKvCache;
  options.page_size = 16;
  KvCache plain(options);
  const std::vector<float> exact = outputs_of(plain, prompt);
  const struct {
    DType k, v;
    float bound;  // of |out - exact|: elements are at most 1.75, codes have 8 or 4 bits
  } cases[] = {{DType::i8, DType::i8, 0.05f},    {DType::f8e4m3, DType::f8e4m3, 0.15f},
               {DType::i8, DType::i4x2, 0.3f},   {DType::f32, DType::i4x2, 0.3f},
               {DType::u4x2, DType::u4x2, 0.3f}, {DType::u2x4, DType::u2x4, 1.0f},
               {DType::u2x4, DType::f32, 1.0f},  {DType::f32, DType::u2x4, 1.0f}};
  for (const auto& c : cases) {
    if (c.k != DType::f32) options.k_dtype = c.k;
    if (c.v != DType::f32) options.v_dtype = c.v;
    options.num_recent_pages = 8;
    const bool has_words = c.k == DType::u4x2 || c.k == DType::u2x4;
    options.page_size = has_words ? 32 : 16;
    KvCache whole(options);
    EXPECT_EQ(whole.k_pages(0).type(), c.k);
    EXPECT_EQ(whole.quantised(0).k_scale.rank, c.k == DType::f32 ? 0 : has_words ? 4 : 3);
    const std::vector<float> expected = outputs_of_codes(whole, prompt, prompt.size());
    float largest = 0;
    for (std::size_t i = 0; i < exact.size(); ++i)
      largest = std::max(largest, std::abs(expected[i] - exact[i]));
    EXPECT_GT(largest, 0);
    EXPECT_LT(largest, c.bound);
    const std::vector<float> again = outputs_of_codes(whole, prompt, 5);
    EXPECT_EQ(again.size(), 6u * 2 * 8);  // four pages are found
    EXPECT_TRUE(std::equal(again.rbegin(), again.rend(), expected.rbegin()));
    for (const std::size_t chunk : {1, 7, 16, 33}) {
      KvCache cache(options);
      EXPECT_EQ(outputs_of_codes(cache, prompt, chunk), expected) << chunk;
    }
    options.k_dtype = options.v_dtype = {};
  }
}

TEST(KvCacheApi, ArraysOfAnotherSizeAreNotWritten) {
  KvCache cache(kSmallKvCache);
  const std::int64_t sequences[] = {cache.add({}).sequence, cache.add({}).sequence};
  const std::int32_t num_tokens[] = {0, 0};
  Tokens three(3);
  const auto text = [&](const headrace::KvBatch& batch) {
    return error_of([&] { cache.fill_batch(batch); }, HEADRACE_INVALID_ARGUMENT);
  };
  EXPECT_EQ(text({.sequences = sequences, .num_tokens = {num_tokens, 1}}),
            "num_tokens: must have one entry per sequence; resize it");
  EXPECT_EQ(
      text(
          {.sequences = sequences, .num_tokens = num_tokens, .max_pages = 2, .block_table = three}),
      "block_table: must have max_pages entries per sequence; resize it or pass none");
  EXPECT_EQ(text({.sequences = sequences, .num_tokens = num_tokens, .seqused_k = three}),
            "seqused_k: must have one entry per sequence; resize it or pass none");
  EXPECT_EQ(text({.sequences = sequences,
                  .num_tokens = num_tokens,
                  .max_recent = 2,
                  .recent_table = three}),
            "recent_table: must have max_recent entries per sequence; resize it or pass none");
  std::vector<std::int64_t> slots(1), two(2);
  EXPECT_EQ(text({.sequences = sequences,
                  .num_tokens = num_tokens,
                  .slot_mapping = slots,
                  .recent_slots = two}),
            "recent_slots: must have the size of slot_mapping; resize it or pass none");
  EXPECT_EQ(text({.sequences = sequences, .num_tokens = num_tokens, .recent_slots = slots}),
            "recent_table and recent_slots: given, but the cache has no codes; pass null");
  EXPECT_EQ(text({.sequences = sequences, .num_tokens = num_tokens, .slot_mapping = slots}),
            "slot_mapping: has 1 elements; pass 0 (the sum of num_tokens), or null");
}

// Two sequences with a page in common, one of them swapped out, after a hit, a copy and a move.
TEST(KvCacheApi, EveryNumberOfTheStats) {
  KvCache cache(kSmallKvCache);  // pages of 4 tokens, 8 on the device and 4 on the host
  const std::int64_t first = cache.add(Tokens{1, 2, 3, 4, 5, 6}).sequence;
  cache.reserve(first, 6);
  cache.commit(first, Tokens{1, 2, 3, 4, 5, 6});
  const std::int64_t fork = cache.fork(first);
  cache.reserve(fork, 3);  // copies the page of tokens 5 and 6, takes another
  const std::int64_t accepted[] = {7};
  cache.move(fork, accepted);
  cache.commit(fork, Tokens{8});
  EXPECT_EQ(cache.add(Tokens{1, 2, 3, 4, 9}).num_cached, 4);
  const std::int64_t third = cache.add(Tokens{10, 11, 12, 13, 14}).sequence;
  cache.reserve(third, 5);
  cache.commit(third, Tokens{10, 11, 12, 13, 14});
  cache.swap_out(third);

  const headrace_kv_cache_stats s = cache.stats();
  EXPECT_EQ(s.num_pages, 8);
  EXPECT_EQ(s.num_used_pages, 3);  // tokens 1 to 4, the rest of first, the rest of fork
  EXPECT_EQ(s.num_free_pages, 5);
  EXPECT_EQ(s.num_cached_pages, 2);
  EXPECT_EQ(s.num_shared_pages, 1);
  EXPECT_EQ(s.num_host_pages, 4);
  EXPECT_EQ(s.num_free_host_pages, 2);
  EXPECT_EQ(s.num_sequences, 4);
  EXPECT_EQ(s.num_swapped_sequences, 1);
  EXPECT_EQ(s.num_tokens, 4 + 2 + 3);
  EXPECT_EQ(s.num_unused_slots, 3 * 4 - 9);
  EXPECT_EQ(s.num_queried_tokens, 6 + 5 + 5);
  EXPECT_EQ(s.num_hit_tokens, 4);
  EXPECT_EQ(s.num_evictions, 0);
  EXPECT_EQ(s.num_page_copies, 1);
  EXPECT_EQ(s.num_moved_tokens, 1);
  EXPECT_EQ(s.num_pages_swapped_out, 2);
  EXPECT_EQ(s.num_pages_swapped_in, 0);
  cache.swap_in(third);
  EXPECT_EQ(cache.stats().num_pages_swapped_in, 1);  // the full page is in the prefix cache
  EXPECT_EQ(cache.stats().num_free_host_pages, 4);
  EXPECT_EQ(cache.stats().num_swapped_sequences, 0);
}

TEST(KvCacheApi, OptionsAreChecked) {
  const auto expect = [](auto change, const std::string& text) {
    KvCacheOptions options = kSmallKvCache;
    change(options);
    EXPECT_EQ(error_of([&] { KvCache cache(options); }, HEADRACE_INVALID_ARGUMENT), text);
  };
  using O = KvCacheOptions;
  expect([](O& o) { o.num_layers = 0; },
         "num_layers=0: must be 1 to 2147483647; pass that of the model");
  expect([](O& o) { o.head_dim_v = -1; },
         "head_dim_v=-1: must be 1 to 576; pass that of the model");
  expect([](O& o) { o.dtype = DType::i32; },
         "dtype=i32: must be f32, f16 or bf16; pass the one that attention reads");
  expect([](O& o) { o.dtype = static_cast<DType>(7); },
         "dtype=7: must be HEADRACE_F16, HEADRACE_BF16 or HEADRACE_F32");
  expect([](O& o) { o.layout = static_cast<KvLayout>(2); },
         "layout=2: must be 0 (nhd) or 1 (hnd); pass a headrace_kv_layout");
  expect([](O& o) { o.device_type = 2; },
         "device_type=2: must be 0 (cpu) or 1 (cuda); pass a headrace_device_type");
  expect([](O& o) { o.device_id = 1; }, "device_id=1: must be 0 on the CPU; pass 0");
  expect([](O& o) { o.k_dtype = DType::f16; },
         "k_dtype=1: must be -1 (dtype) or codes; pass HEADRACE_I8, HEADRACE_F8E4M3, "
         "HEADRACE_I4X2, HEADRACE_U4X2 or HEADRACE_U2X4");
  expect(
      [](O& o) { o.v_dtype = DType::i8; },
      "page_size=4: must be a multiple of 16 with k_dtype=f32 and v_dtype=i8, as tokens count in "
      "groups; pass 32 or 64");
  expect(
      [](O& o) {
        o.v_dtype = DType::i8;
        o.page_size = 16;
      },
      "num_recent_pages=0: must be 1 to 2147483647; pass two for each sequence and one for each "
      "group of tokens of a step");
  expect([](O& o) { o.num_recent_pages = 1; },
         "num_recent_pages=1: must be 0 for a cache without codes; pass 0");
  EXPECT_EQ(error_of([] { static_cast<void>(KvCache(kSmallKvCache).quantised(0)); },
                     HEADRACE_INVALID_ARGUMENT),
            "cache: has no codes, so no scales; create it with k_dtype or v_dtype");
  headrace_kv_cache_options c = kSmallKvCache.to_c();
  c.struct_size = 8;
  headrace_kv_cache* cache = nullptr;
  EXPECT_EQ(headrace_kv_cache_create(&c, &cache), HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(headrace_last_error()).find("options.struct_size=8"), 0u);
  EXPECT_EQ(cache, nullptr);
}

// Without CUDA, without a driver, or without such a device: an error, and no memory of the host.
TEST(KvCacheApi, ADeviceThatIsAbsentIsAnError) {
  KvCacheOptions options = kSmallKvCache;
  options.device_type = HEADRACE_CUDA;
  options.device_id = 1000;
  const headrace_kv_cache_options c = options.to_c();
  headrace_kv_cache* cache = nullptr;
  const headrace_status status = headrace_kv_cache_create(&c, &cache);
  EXPECT_TRUE(status == HEADRACE_UNSUPPORTED || status == HEADRACE_DEVICE_ERROR ||
              status == HEADRACE_INVALID_ARGUMENT);
  EXPECT_STRNE(headrace_last_error(), "");
  EXPECT_EQ(cache, nullptr);
}

TEST(KvCacheApi, NullPointersAreErrors) {
  const KvCache owner(kSmallKvCache);
  headrace_kv_cache* const cache = owner.get();
  headrace_tensor pages;
  std::int64_t id = 0;
  const std::int32_t token = 1;
  const auto expect = [](headrace_status status, const std::string& argument) {
    EXPECT_EQ(status, HEADRACE_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(headrace_last_error()).find(argument + "=NULL: must not be null; "), 0u)
        << headrace_last_error();
  };
  const headrace_kv_cache_options options = kSmallKvCache.to_c();
  expect(headrace_kv_cache_create(&options, nullptr), "cache");
  headrace_kv_batch batch;
  headrace_kv_batch_init(&batch);
  headrace_kv_sequence_info info{};
  headrace_kv_cache_stats stats{};
  expect(headrace_kv_cache_k_pages(nullptr, 0, &pages), "cache");
  expect(headrace_kv_cache_v_pages(nullptr, 0, &pages), "cache");
  headrace_quantised_kv codes;
  headrace_quantised_kv_init(&codes);
  expect(headrace_kv_cache_quantised(nullptr, 0, &codes), "cache");
  expect(headrace_kv_cache_add(nullptr, nullptr, 0, 0, &id, nullptr), "cache");
  expect(headrace_kv_cache_fork(nullptr, 1, &id), "cache");
  expect(headrace_kv_cache_free(nullptr, 1), "cache");
  expect(headrace_kv_cache_reserve(nullptr, 1, 1, nullptr), "cache");
  expect(headrace_kv_cache_commit(nullptr, 1, nullptr, 0), "cache");
  expect(headrace_kv_cache_truncate(nullptr, 1, 0), "cache");
  expect(headrace_kv_cache_move(nullptr, 1, nullptr, 0, nullptr), "cache");
  expect(headrace_kv_cache_swap_out(nullptr, 1, nullptr), "cache");
  expect(headrace_kv_cache_swap_in(nullptr, 1, nullptr), "cache");
  expect(headrace_kv_cache_get_sequence_info(nullptr, 1, &info), "cache");
  expect(headrace_kv_cache_fill_batch(nullptr, &batch), "cache");
  expect(headrace_kv_cache_get_stats(nullptr, &stats), "cache");
  expect(headrace_kv_cache_k_pages(cache, 0, nullptr), "pages");
  expect(headrace_kv_cache_v_pages(cache, 0, nullptr), "pages");
  expect(headrace_kv_cache_add(cache, nullptr, 1, 0, &id, nullptr), "tokens");
  expect(headrace_kv_cache_add(cache, &token, 1, 0, nullptr, nullptr), "sequence");
  EXPECT_EQ(headrace_kv_cache_add(cache, nullptr, 0, 0, &id, nullptr), HEADRACE_OK);
  expect(headrace_kv_cache_fork(cache, id, nullptr), "fork");
  expect(headrace_kv_cache_commit(cache, id, nullptr, 1), "tokens");
  expect(headrace_kv_cache_move(cache, id, nullptr, 1, nullptr), "positions");
  batch.num_sequences = 1;
  expect(headrace_kv_cache_fill_batch(cache, &batch), "sequences");
  batch.sequences = &id;
  expect(headrace_kv_cache_fill_batch(cache, &batch), "num_tokens");
  EXPECT_EQ(owner.stats().num_sequences, 1);
  headrace_kv_cache_destroy(nullptr);
}

}  // namespace
