// What callers read: arrays for a step, and numbers about sequences and pages.
#include <algorithm>
#include <utility>

#include "base/math.h"
#include "kv_cache/kv_cache.h"

namespace headrace {

const KvCache::Sequence* KvCache::find_sequence(std::int64_t sequence) const {
  const std::unique_ptr<Sequence>* const found = sequences_.find(sequence);
  return found == nullptr ? nullptr : found->get();
}

KvCache::Sequence* KvCache::find_sequence(std::int64_t sequence) {
  return const_cast<Sequence*>(std::as_const(*this).find_sequence(sequence));
}

Status KvCache::check_exists(std::int64_t sequence, const Sequence* found) {
  if (found != nullptr) return std::nullopt;
  return invalid_argument(
      "sequence={}: is not in this cache; pass an id that add or fork returned and that was not "
      "freed since",
      sequence);
}

Status KvCache::check_on_device(std::int64_t sequence, const Sequence* found) {
  HEADRACE_TRY(check_exists(sequence, found));
  if (!found->is_swapped) return std::nullopt;
  return invalid_argument("sequence={}: is swapped out; swap it in first", sequence);
}

std::int64_t KvCache::pages_for(std::int64_t num_tokens) const {
  return ceil_div(num_tokens, options_.page_size);
}

// ---- arrays for a step ----

Status KvCache::check_batch(const KvBatch& batch) const {
  const auto n = static_cast<std::int64_t>(batch.sequences.size());
  if (batch.num_tokens.size() != batch.sequences.size())
    return invalid_argument("num_tokens: has {} entries; pass one for each of the {} sequences",
                            batch.num_tokens.size(), n);
  std::int64_t num_slots = 0;
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    HEADRACE_TRY(check_batch_entry(batch, i));
    num_slots += batch.num_tokens[i];
  }
  const struct {
    const char* name;
    bool is_given;
    std::size_t size;
    std::int64_t expected;
    const char* shape;
  } arrays[] = {
      {"block_table", batch.block_table.data() != nullptr, batch.block_table.size(),
       saturating_product({n, batch.max_pages}), "num_sequences * max_pages"},
      {"seqused_k", batch.seqused_k.data() != nullptr, batch.seqused_k.size(), n, "num_sequences"},
      {"slot_mapping", batch.slot_mapping.data() != nullptr, batch.slot_mapping.size(), num_slots,
       "the sum of num_tokens"},
      {"recent_table", batch.recent_table.data() != nullptr, batch.recent_table.size(),
       saturating_product({n, batch.max_recent}), "num_sequences * max_recent"},
      {"recent_slots", batch.recent_slots.data() != nullptr, batch.recent_slots.size(), num_slots,
       "the sum of num_tokens"}};
  for (const auto& [name, is_given, size, expected, shape] : arrays)
    if (is_given && size != static_cast<std::size_t>(expected))
      return invalid_argument("{}: has {} elements; pass {} ({}), or null", name, size, expected,
                              shape);
  return std::nullopt;
}

Status KvCache::check_batch_entry(const KvBatch& batch, std::size_t i) const {
  const Sequence* const found = find_sequence(batch.sequences[i]);
  HEADRACE_TRY(check_on_device(batch.sequences[i], found));
  const Sequence& s = *found;
  const std::int64_t num_tokens = batch.num_tokens[i];
  if (num_tokens < 0 || num_tokens > s.num_reserved)
    return invalid_argument(
        "num_tokens[{}]={}: must be 0 to {}, the reserved slots of sequence {}; reserve more first",
        i, num_tokens, s.num_reserved, batch.sequences[i]);
  const std::int64_t num_pages = pages_for(s.length + num_tokens);
  if (batch.block_table.data() != nullptr && num_pages > batch.max_pages)
    return invalid_argument("max_pages={}: sequence {} has {} pages; pass at least as many",
                            batch.max_pages, batch.sequences[i], num_pages);
  const bool has_recent =
      batch.recent_table.data() != nullptr || batch.recent_slots.data() != nullptr;
  if (has_recent && !has_codes())
    return invalid_argument(
        "recent_table and recent_slots: given, but the cache has no codes; pass null");
  const std::int64_t num_recent = recent_pages_for(s.length, num_tokens);
  if (batch.recent_table.data() != nullptr && num_recent > batch.max_recent)
    return invalid_argument("max_recent={}: sequence {} has {} recent pages; pass at least as many",
                            batch.max_recent, batch.sequences[i], num_recent);
  return std::nullopt;
}

Status KvCache::fill_batch(const KvBatch& batch) const {
  HEADRACE_TRY(check_batch(batch));
  const std::int64_t page_size = options_.page_size;
  auto row = batch.block_table.begin();
  auto slot = batch.slot_mapping.begin();
  auto recent_row = batch.recent_table.begin();
  auto recent_slot = batch.recent_slots.begin();
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    const Sequence& s = *sequences_.at(batch.sequences[i]);
    const std::int64_t end = s.length + batch.num_tokens[i];
    if (batch.seqused_k.data() != nullptr) batch.seqused_k[i] = static_cast<std::int32_t>(end);
    if (batch.block_table.data() != nullptr) {
      std::fill_n(std::copy_n(s.block_table.begin(), pages_for(end), row),
                  batch.max_pages - pages_for(end), 0);
      row += batch.max_pages;
    }
    if (batch.recent_table.data() != nullptr) {
      const std::int64_t count = recent_pages_for(s.length, batch.num_tokens[i]);
      std::fill_n(std::copy_n(s.recent_table.begin(), count, recent_row), batch.max_recent - count,
                  0);
      recent_row += batch.max_recent;
    }
    for (std::int64_t token = s.length; token < end; ++token) {
      const auto page_idx = static_cast<std::size_t>(token / page_size);
      if (batch.slot_mapping.data() != nullptr)
        *slot++ = s.block_table[page_idx] * page_size + token % page_size;
      if (batch.recent_slots.data() == nullptr) continue;
      const auto group =
          static_cast<std::size_t>(token / recent_group() - s.length / recent_group());
      *recent_slot++ = s.recent_table[group] * recent_group() + token % recent_group();
    }
  }
  return std::nullopt;
}

// ---- numbers ----

Result<KvSequenceInfo> KvCache::info(std::int64_t sequence) const {
  const Sequence* const found = find_sequence(sequence);
  if (Status bad = check_exists(sequence, found)) return std::move(*bad);
  const Sequence& s = *found;
  return KvSequenceInfo{s.length, s.num_reserved, static_cast<std::int64_t>(s.block_table.size()),
                        s.is_swapped};
}

KvCacheStats KvCache::stats() const {
  KvCacheStats stats{};
  stats.num_pages = allocator_.num_pages();
  stats.num_free_pages = allocator_.num_free();
  stats.num_used_pages = stats.num_pages - stats.num_free_pages;
  stats.num_cached_pages = prefix_cache_.num_pages();
  stats.num_shared_pages = allocator_.num_shared();
  stats.num_host_pages = host_allocator_.num_pages();
  stats.num_free_host_pages = host_allocator_.num_free();
  stats.num_sequences = static_cast<std::int64_t>(sequences_.size());
  // A page that several sequences share is as full as the longest of them makes it.
  std::vector<std::int64_t> num_filled(static_cast<std::size_t>(stats.num_pages), 0);
  sequences_.for_each([&](std::int64_t, const std::unique_ptr<Sequence>& sequence) {
    const Sequence& s = *sequence;
    stats.num_swapped_sequences += s.is_swapped;
    std::int64_t rest = s.is_swapped ? 0 : s.length;
    for (const std::int32_t page : s.block_table) {
      auto& filled = num_filled[static_cast<std::size_t>(page)];
      filled = std::max(filled, std::min(rest, options_.page_size));
      rest -= std::min(rest, options_.page_size);
    }
  });
  for (const std::int64_t filled : num_filled) stats.num_tokens += filled;
  stats.num_unused_slots = stats.num_used_pages * options_.page_size - stats.num_tokens;
  stats.num_queried_tokens = counters_.queried_tokens;
  stats.num_hit_tokens = counters_.hit_tokens;
  stats.num_evictions = counters_.evictions;
  stats.num_page_copies = counters_.page_copies;
  stats.num_moved_tokens = counters_.moved_tokens;
  stats.num_pages_swapped_out = counters_.pages_swapped_out;
  stats.num_pages_swapped_in = counters_.pages_swapped_in;
  return stats;
}

}  // namespace headrace
