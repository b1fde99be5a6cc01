// Random operations on a paged cache beside a naive one that keeps the keys and values of every
// sequence in memory of its own. After every operation the invariants of pages, counts and the
// prefix cache hold, and what is read through the block tables equals the naive cache bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "core/device.h"
#include "kv_cache/kv_cache.h"
#include "tests/support/kv_cache_rows.h"

namespace headrace {
namespace {

using testing::Bytes;
using testing::history_of;
using testing::Random;
using testing::TokenRows;
using Tokens = std::vector<std::int32_t>;

struct NaiveSequence {
  std::uint64_t salt = 0;
  Tokens tokens = {};
  std::vector<std::uint64_t> rows = {};  // what those of each token are made of
  bool is_swapped = false;
};

struct Setting {
  std::int64_t page_size;
  std::uint64_t hash_mask;
  KvLayout layout;
  DType dtype;
  std::optional<DType> k_dtype = {}, v_dtype = {};  // of codes
};

class RandomOperations : public ::testing::TestWithParam<Setting> {
 protected:
  RandomOperations() {
    const Setting& setting = GetParam();
    KvShape shape = {2, 2, 4, 6, setting.dtype};
    if (setting.k_dtype) shape.k_dtype = *setting.k_dtype;
    if (setting.v_dtype) shape.v_dtype = *setting.v_dtype;
    const KvCacheOptions options = {.shape = shape,
                                    .layout = setting.layout,
                                    .page_size = setting.page_size,
                                    .num_pages = kPages,
                                    .num_host_pages = kPages / 2,
                                    .num_recent_pages = shape.has_codes() ? kRecentPages : 0,
                                    .hash_mask = setting.hash_mask};
    cache_ = std::make_unique<KvCache>(std::move(KvCache::make(*device_, options).value()));
    rows_ = std::make_unique<TokenRows>(*cache_);
    recent_rows_ = std::make_unique<TokenRows>(cache_->recent_pages(), 2);
    if (has_zero_points(shape.k_dtype))
      group_rows_ = std::make_unique<TokenRows>(cache_->pages(), 2, kZeroPointGroup);
  }

  void step() {
    const std::int64_t kind = random_.between(0, 99);
    if (naive_.empty() || (kind < 18 && std::ssize(naive_) < kMaxSequences)) return add();
    const std::int64_t id = pick();
    if (std::ssize(naive_) == kMaxSequences) return free(id);
    if (naive_.at(id).is_swapped) return kind < 90 ? swap_in(id) : free(id);
    if (kind < 55) return append(id);
    if (kind < 65) return fork(id);
    if (kind < 75) return truncate(id);
    if (kind < 83) return accept(id);
    if (kind < 89) return swap_out(id);
    free(id);
  }

  void add();
  void append(std::int64_t id);
  void fork(std::int64_t id);
  void truncate(std::int64_t id);
  void accept(std::int64_t id);
  void swap_out(std::int64_t id);
  void swap_in(std::int64_t id);
  void free(std::int64_t id);
  bool reserve(std::int64_t id, std::int64_t num_tokens);

  std::int64_t group() const { return cache_->recent_group(); }
  std::int64_t pick() {
    const auto n = random_.between(0, static_cast<std::int64_t>(naive_.size()) - 1);
    return std::next(naive_.begin(), n)->first;
  }
  // Mostly 0, so that sequences have common prefixes.
  std::int32_t draw_token() { return random_.between(0, 4 * GetParam().page_size) == 0; }
  Tokens draw_tokens(std::int64_t max_count) {
    Tokens tokens(static_cast<std::size_t>(random_.between(0, max_count)));
    for (auto& token : tokens) token = draw_token();
    return tokens;
  }
  // The tokens of `naive`, and these: what the rows that a model computes for the last one are made
  // of.
  static std::uint64_t rows_after(const NaiveSequence& naive, std::span<const std::int32_t> more) {
    Tokens all = naive.tokens;
    all.insert(all.end(), more.begin(), more.end());
    return history_of(naive.salt, all);
  }
  struct Slots {
    std::vector<std::int64_t> stored, recent;  // recent: with codes
  };
  Slots reserved_slots(std::int64_t id, std::int64_t num_tokens) const;
  void write(const Slots& slots, std::size_t i, std::uint64_t rows) const {
    rows_->write(slots.stored[i], rows_->made(rows));
    if (cache_->has_codes()) recent_rows_->write(slots.recent[i], recent_rows_->made(~rows));
    if (group_rows_ != nullptr && (slots.stored[i] + 1) % kZeroPointGroup == 0)
      group_rows_->write(slots.stored[i] / kZeroPointGroup, group_rows_->made(rows + 1));
  }
  void check_recent(std::int64_t id, const NaiveSequence& naive) const;
  void check_recent_pages() const;
  void commit(std::int64_t id, std::span<const std::int32_t> tokens);

  // Everything that a caller can see.
  using State = std::pair<std::vector<std::vector<std::int32_t>>, std::vector<std::int64_t>>;
  State state() const;
  void check_pages() const;
  void check_sequences();
  std::vector<std::int32_t> filled_table(std::int64_t id, const KvSequenceInfo& info) const;
  void check_cached_pages() const;
  void check_stats() const;

  static constexpr std::int64_t kPages = 24;
  static constexpr std::int64_t kMaxSequences = 8;
  static constexpr std::int64_t kRecentPages = 14;
  std::unique_ptr<Device> device_ = make_host_device(cpu_info().value());
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<TokenRows> rows_, recent_rows_, group_rows_;  // group_rows_: with zero points
  Random random_{20261124};
  std::map<std::int64_t, NaiveSequence> naive_;
  // Salt and tokens of the prefix that ends with a page, of every page that was ever full.
  std::map<std::int32_t, NaiveSequence> full_pages_;
  std::int64_t num_failures_ = 0;
};

// ---- operations ----

void RandomOperations::add() {
  const std::int64_t page_size = GetParam().page_size;
  const auto salt = static_cast<std::uint64_t>(random_.between(0, 1));
  const Tokens prompt = draw_tokens(6 * page_size);
  const KvCache::Added added = cache_->add(prompt, salt).value();
  EXPECT_EQ(added.num_cached % page_size, 0);
  EXPECT_LE(added.num_cached, std::max<std::int64_t>(0, std::ssize(prompt) - 1));
  NaiveSequence& naive = naive_[added.sequence];
  naive.salt = salt;
  for (std::int64_t i = 0; i < added.num_cached; ++i) {
    const std::int32_t token = prompt[static_cast<std::size_t>(i)];
    naive.rows.push_back(rows_after(naive, {&token, 1}));
    naive.tokens.push_back(token);
  }
  const auto rest = std::span<const std::int32_t>(prompt).subspan(naive.tokens.size());
  if (reserve(added.sequence, std::ssize(rest))) commit(added.sequence, rest);
}

// Fails with nothing changed, if it fails.
bool RandomOperations::reserve(std::int64_t id, std::int64_t num_tokens) {
  const State before = state();
  const Status bad = cache_->reserve(id, num_tokens, nullptr);
  if (!bad) return true;
  EXPECT_TRUE(bad->code == ErrorCode::out_of_memory || bad->code == ErrorCode::invalid_argument);
  EXPECT_EQ(state(), before);
  ++num_failures_;
  return false;
}

RandomOperations::Slots RandomOperations::reserved_slots(std::int64_t id,
                                                         std::int64_t num_tokens) const {
  const auto n = static_cast<std::size_t>(num_tokens);
  Slots slots{std::vector<std::int64_t>(n), std::vector<std::int64_t>(cache_->has_codes() ? n : 0)};
  const auto count = static_cast<std::int32_t>(num_tokens);
  const Status bad = cache_->fill_batch({.sequences = {&id, 1},
                                         .num_tokens = {&count, 1},
                                         .slot_mapping = slots.stored,
                                         .recent_slots = slots.recent});
  EXPECT_FALSE(bad) << bad->message;
  return slots;
}

// Writes the rows of the tokens into the reserved slots, and commits them.
void RandomOperations::commit(std::int64_t id, std::span<const std::int32_t> tokens) {
  NaiveSequence& naive = naive_.at(id);
  const Slots slots = reserved_slots(id, std::ssize(tokens));
  std::vector<std::uint64_t> rows;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    rows.push_back(rows_after(naive, tokens.first(i + 1)));
    write(slots, i, rows.back());
  }
  ASSERT_FALSE(cache_->commit(id, tokens));
  naive.tokens.insert(naive.tokens.end(), tokens.begin(), tokens.end());
  naive.rows.insert(naive.rows.end(), rows.begin(), rows.end());
}

// Now and then more slots than tokens, and tokens in two parts.
void RandomOperations::append(std::int64_t id) {
  const Tokens tokens = draw_tokens(2 * GetParam().page_size);
  const std::int64_t more = random_.chance(30) ? random_.between(0, 9) : 0;
  if (!reserve(id, std::ssize(tokens) + more)) return;
  const auto all = std::span<const std::int32_t>(tokens);
  const auto half = static_cast<std::size_t>(random_.between(0, std::ssize(tokens)));
  commit(id, all.first(half));
  commit(id, all.subspan(half));
}

void RandomOperations::fork(std::int64_t id) {
  const Result<std::int64_t> fork = cache_->fork(id);
  EXPECT_EQ(fork.ok(), cache_->info(id).value().num_reserved == 0);
  if (fork.ok()) naive_[fork.value()] = NaiveSequence(naive_.at(id));
}

void RandomOperations::truncate(std::int64_t id) {
  NaiveSequence& naive = naive_.at(id);
  const std::int64_t length = std::ssize(naive.tokens);
  const std::int64_t kept = random_.chance(50)
                                ? random_.between(std::max<std::int64_t>(0, length - 3), length)
                                : random_.between(0, length);
  const State before = state();
  const bool is_whole = kept % group() == 0 || kept / group() == length / group();
  if (const Status bad = cache_->truncate(id, kept)) {
    EXPECT_TRUE(cache_->has_codes() && !is_whole) << bad->message;
    EXPECT_EQ(state(), before);
    return;
  }
  EXPECT_TRUE(!cache_->has_codes() || is_whole);
  naive.tokens.resize(static_cast<std::size_t>(kept));
  naive.rows.resize(static_cast<std::size_t>(kept));
}

// A draft tree: rows of all nodes are written, those of the accepted path stay.
void RandomOperations::accept(std::int64_t id) {
  const std::int64_t num_nodes = random_.between(1, 2 * GetParam().page_size + 3);
  if (!reserve(id, num_nodes)) return;
  NaiveSequence& naive = naive_.at(id);
  const Slots slots = reserved_slots(id, num_nodes);
  std::vector<std::int64_t> positions;
  Tokens accepted;
  for (std::size_t node = 0; node < slots.stored.size(); ++node) {
    const bool is_accepted = random_.chance(40);
    accepted.push_back(draw_token());
    write(slots, node, is_accepted ? rows_after(naive, accepted) : random_.next());
    if (!is_accepted) accepted.pop_back();
    if (is_accepted)
      positions.push_back(std::ssize(naive.tokens) + static_cast<std::int64_t>(node));
  }
  const State before = state();
  if (const Status bad = cache_->move(id, positions, nullptr)) {
    const std::int64_t end = std::ssize(naive.tokens) + std::ssize(positions);
    EXPECT_TRUE(group_rows_ && positions.back() >= end) << bad->message;
    EXPECT_EQ(state(), before);
    positions.clear();
    accepted.clear();
    ASSERT_FALSE(cache_->move(id, positions, nullptr));
  }
  EXPECT_EQ(cache_->info(id).value().num_reserved, std::ssize(accepted));
  ASSERT_FALSE(cache_->commit(id, accepted));
  for (const std::int32_t token : accepted) {
    naive.rows.push_back(rows_after(naive, {&token, 1}));
    naive.tokens.push_back(token);
  }
}

void RandomOperations::swap_out(std::int64_t id) {
  const State before = state();
  if (const Status bad = cache_->swap_out(id, nullptr)) {
    EXPECT_EQ(bad->code, ErrorCode::out_of_memory);
    EXPECT_EQ(state(), before);
    ++num_failures_;
    return;
  }
  naive_.at(id).is_swapped = true;
}

void RandomOperations::swap_in(std::int64_t id) {
  const State before = state();
  if (const Status bad = cache_->swap_in(id, nullptr)) {
    EXPECT_EQ(bad->code, ErrorCode::out_of_memory);
    EXPECT_EQ(state(), before);
    ++num_failures_;
    return;
  }
  naive_.at(id).is_swapped = false;
}

void RandomOperations::free(std::int64_t id) {
  ASSERT_FALSE(cache_->free(id));
  naive_.erase(id);
}

// ---- what must hold after each ----

RandomOperations::State RandomOperations::state() const {
  State state;
  state.first = {cache_->allocator().free_pages(), cache_->host_allocator().free_pages()};
  for (const auto& [id, naive] : naive_) {
    const auto table = cache_->block_table(id);
    state.first.emplace_back(table.begin(), table.end());
    const auto recent = cache_->recent_table(id);
    state.first.emplace_back(recent.begin(), recent.end());
    const KvSequenceInfo info = cache_->info(id).value();
    state.second.insert(state.second.end(), {info.length, info.num_reserved, info.is_swapped});
  }
  for (std::int32_t page = 0; page < kPages; ++page)
    state.second.push_back(cache_->prefix_cache().contains(page));
  const KvCacheStats stats = cache_->stats();
  state.second.insert(state.second.end(), {stats.num_evictions, stats.num_page_copies,
                                           stats.num_moved_tokens, stats.num_pages_swapped_in});
  return state;
}

// A page has as many references as tables hold it, and is in the free list if it has none.
void RandomOperations::check_pages() const {
  const PageAllocator& pages = cache_->allocator();
  std::vector<std::int32_t> num_refs(kPages, 0);
  for (const auto& [id, naive] : naive_) {
    const auto table = cache_->block_table(id);
    EXPECT_EQ(std::set<std::int32_t>(table.begin(), table.end()).size(), table.size());
    for (const std::int32_t page : table) ++num_refs[static_cast<std::size_t>(page)];
  }
  const auto list = pages.free_pages();
  const std::set<std::int32_t> free(list.begin(), list.end());
  EXPECT_EQ(free.size(), list.size());
  EXPECT_EQ(pages.num_free(), std::ssize(list));
  std::int32_t num_used = 0, num_shared = 0;
  for (std::int32_t page = 0; page < kPages; ++page) {
    const std::int32_t expected = num_refs[static_cast<std::size_t>(page)];
    EXPECT_EQ(pages.num_refs(page), expected) << page;
    EXPECT_EQ(free.contains(page), expected == 0) << page;
    num_used += expected > 0;
    num_shared += expected > 1;
  }
  EXPECT_EQ(pages.num_free() + num_used, kPages);
  EXPECT_EQ(pages.num_shared(), num_shared);
}

// The block table that kernels get.
std::vector<std::int32_t> RandomOperations::filled_table(std::int64_t id,
                                                         const KvSequenceInfo& info) const {
  const auto num_tokens = static_cast<std::int32_t>(info.num_reserved);
  std::int32_t seqused_k = 0;
  std::vector<std::int32_t> row(kPages, -1);
  const Status bad = cache_->fill_batch({.sequences = {&id, 1},
                                         .num_tokens = {&num_tokens, 1},
                                         .max_pages = kPages,
                                         .block_table = row,
                                         .seqused_k = {&seqused_k, 1}});
  EXPECT_FALSE(bad) << bad->message;
  EXPECT_EQ(seqused_k, info.length + info.num_reserved);
  const std::int64_t num_pages = (seqused_k + GetParam().page_size - 1) / GetParam().page_size;
  EXPECT_EQ(info.num_pages, num_pages);
  EXPECT_EQ(std::count(row.begin() + num_pages, row.end(), 0), kPages - num_pages);
  return row;
}

// Each sequence reads its own rows through its table; full pages are in the prefix cache; slots
// that may be written lie in pages of one sequence that are not in the prefix cache.
void RandomOperations::check_sequences() {
  const std::int64_t page_size = GetParam().page_size;
  for (const auto& [id, naive] : naive_) {
    const KvSequenceInfo info = cache_->info(id).value();
    ASSERT_EQ(info.length, std::ssize(naive.tokens));
    ASSERT_EQ(info.is_swapped, naive.is_swapped);
    if (naive.is_swapped) continue;
    const Tokens table = filled_table(id, info);
    for (std::int64_t token = 0; token < info.length; ++token) {
      const std::int32_t page = table[static_cast<std::size_t>(token / page_size)];
      ASSERT_EQ(rows_->read(page * page_size + token % page_size),
                rows_->made(naive.rows[static_cast<std::size_t>(token)]))
          << "sequence " << id << ", token " << token;
      if (group_rows_ != nullptr && (token + 1) % kZeroPointGroup == 0) {
        ASSERT_EQ(group_rows_->read((page * page_size + token % page_size) / kZeroPointGroup),
                  group_rows_->made(naive.rows[static_cast<std::size_t>(token)] + 1));
      }
      if ((token + 1) % page_size != 0) continue;
      ASSERT_TRUE(cache_->prefix_cache().contains(page));
      const auto end = naive.tokens.begin() + token + 1;
      full_pages_[page] = {.salt = naive.salt, .tokens = Tokens(naive.tokens.begin(), end)};
    }
    check_recent(id, naive);
    for (std::int64_t token = info.length; token < info.length + info.num_reserved; ++token) {
      const std::int32_t page = table[static_cast<std::size_t>(token / page_size)];
      ASSERT_EQ(cache_->allocator().num_refs(page), 1);
      ASSERT_FALSE(cache_->prefix_cache().contains(page));
    }
  }
}

// The tokens of the newest group, if it is not whole, are also there unquantised.
void RandomOperations::check_recent(std::int64_t id, const NaiveSequence& naive) const {
  if (!cache_->has_codes()) return;
  const auto table = cache_->recent_table(id);
  const std::int64_t length = std::ssize(naive.tokens);
  for (std::int64_t token = length / group() * group(); token < length; ++token) {
    ASSERT_FALSE(table.empty());
    ASSERT_EQ(recent_rows_->read(table[0] * group() + token % group()),
              recent_rows_->made(~naive.rows[static_cast<std::size_t>(token)]))
        << "sequence " << id << ", token " << token;
  }
  const KvSequenceInfo info = cache_->info(id).value();
  EXPECT_EQ(std::ssize(table),
            (length + info.num_reserved + group() - 1) / group() - length / group());
  EXPECT_TRUE(info.num_reserved == 0 || cache_->recent_allocator().num_refs(table[0]) == 1);
}

// References to recent pages.
void RandomOperations::check_recent_pages() const {
  std::map<std::int32_t, std::int32_t> num_refs;
  for (const auto& [id, naive] : naive_)
    for (const std::int32_t page : cache_->recent_table(id)) ++num_refs[page];
  const PageAllocator& pages = cache_->recent_allocator();
  for (const auto& [page, count] : num_refs) EXPECT_EQ(pages.num_refs(page), count);
  EXPECT_EQ(pages.num_free() + std::ssize(num_refs), pages.num_pages());
}

// Also a page that no sequence holds has the tokens and rows of its prefix as long as it is cached.
void RandomOperations::check_cached_pages() const {
  const std::int64_t page_size = GetParam().page_size;
  std::int32_t num_cached = 0;
  for (std::int32_t page = 0; page < kPages; ++page) {
    if (!cache_->prefix_cache().contains(page)) continue;
    ++num_cached;
    const NaiveSequence& full = full_pages_.at(page);
    const auto tokens = std::span<const std::int32_t>(full.tokens);
    const std::size_t first = tokens.size() - static_cast<std::size_t>(page_size);
    ASSERT_TRUE(std::ranges::equal(cache_->prefix_cache().tokens(page), tokens.subspan(first)));
    for (std::size_t i = first; i < tokens.size(); ++i)
      ASSERT_EQ(rows_->read(page * page_size + static_cast<std::int64_t>(i - first)),
                rows_->made(history_of(full.salt, tokens.first(i + 1))));
  }
  EXPECT_EQ(cache_->prefix_cache().num_pages(), num_cached);
}

void RandomOperations::check_stats() const {
  const KvCacheStats stats = cache_->stats();
  std::set<std::int64_t> filled;
  std::int64_t num_swapped = 0;
  for (const auto& [id, naive] : naive_) {
    num_swapped += naive.is_swapped;
    if (naive.is_swapped) continue;
    for (std::int64_t token = 0; token < std::ssize(naive.tokens); ++token)
      filled.insert(
          cache_->block_table(id)[static_cast<std::size_t>(token / GetParam().page_size)] *
              GetParam().page_size +
          token % GetParam().page_size);
  }
  EXPECT_EQ(stats.num_sequences, std::ssize(naive_));
  EXPECT_EQ(stats.num_swapped_sequences, num_swapped);
  EXPECT_EQ(stats.num_tokens, std::ssize(filled));
  EXPECT_EQ(stats.num_tokens + stats.num_unused_slots, stats.num_used_pages * GetParam().page_size);
}

TEST_P(RandomOperations, EqualANaiveCache) {
  const int num_steps = GetParam().page_size > 16 ? 1000 : 3000;
  for (int i = 0; i < num_steps && !HasFailure(); ++i) {
    SCOPED_TRACE(i);
    step();
    check_pages();
    check_sequences();
    check_recent_pages();
    check_cached_pages();
    check_stats();
  }
  // The run met everything that it is about.
  const KvCacheStats stats = cache_->stats();
  EXPECT_GT(num_failures_, 10);
  EXPECT_GT(stats.num_hit_tokens, 20 * GetParam().page_size);
  EXPECT_GT(stats.num_evictions, 50);
  EXPECT_GT(stats.num_moved_tokens, 50);
  EXPECT_GT(stats.num_pages_swapped_in, 10);
  EXPECT_GT(stats.num_pages_swapped_out, stats.num_pages_swapped_in);
  EXPECT_GT(stats.num_page_copies, GetParam().page_size > 1 ? 10 : -1);
  while (!naive_.empty()) free(naive_.begin()->first);
  EXPECT_EQ(cache_->stats().num_free_pages, kPages);
  EXPECT_EQ(cache_->stats().num_free_host_pages, kPages / 2);
  EXPECT_EQ(cache_->recent_allocator().num_free(), cache_->recent_allocator().num_pages());
}

INSTANTIATE_TEST_SUITE_P(
    PageSizesAndHashes, RandomOperations,
    ::testing::Values(Setting{1, UINT64_MAX, KvLayout::nhd, DType::bf16},
                      Setting{3, UINT64_MAX, KvLayout::hnd, DType::f32},
                      Setting{3, 1, KvLayout::nhd, DType::f16},
                      Setting{16, UINT64_MAX, KvLayout::hnd, DType::bf16},
                      Setting{16, 1, KvLayout::nhd, DType::f32},
                      Setting{64, 1, KvLayout::nhd, DType::f16},
                      Setting{16, UINT64_MAX, KvLayout::nhd, DType::bf16, DType::i8, DType::f8e4m3},
                      Setting{16, 1, KvLayout::hnd, DType::f16, DType::i4x2},
                      Setting{32, UINT64_MAX, KvLayout::hnd, DType::f16, std::nullopt, DType::i4x2},
                      Setting{96, UINT64_MAX, KvLayout::hnd, DType::f16, DType::u2x4, DType::u4x2},
                      Setting{32, 1, KvLayout::nhd, DType::f16, DType::u4x2}),
    [](const auto& setting) {
      return "PageSize" + std::to_string(setting.param.page_size) +
             (setting.param.k_dtype ? "Keys" : "") + (setting.param.v_dtype ? "Values" : "") +
             (setting.param.hash_mask == 1 ? "OneBitHash" : "");
    });

}  // namespace
}  // namespace headrace
