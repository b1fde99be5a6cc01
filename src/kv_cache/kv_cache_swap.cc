// Swapping: pages of a sequence to the host and back.
#include <algorithm>
#include <iterator>

#include "kv_cache/kv_cache.h"

namespace headrace {

Status KvCache::swap_out(std::int64_t sequence, Stream stream) {
  Sequence* const found = find_sequence(sequence);
  HEADRACE_TRY(check_on_device(sequence, found));
  Sequence& s = *found;
  const auto num_pages = static_cast<std::size_t>(pages_for(s.length));
  if (num_pages > static_cast<std::size_t>(host_allocator_.num_free()))
    return Failure{
        ErrorCode::out_of_memory,
        format_text("sequence={}: needs {} host pages, and {} of num_host_pages={} are "
                    "free; free a swapped sequence, or free this one and compute it anew",
                    sequence, num_pages, host_allocator_.num_free(), host_allocator_.num_pages())};
  std::vector<std::int32_t> host_tokens;
  host_tokens.reserve(num_pages * static_cast<std::size_t>(options_.page_size));
  std::vector<std::int32_t> host_pages;
  host_pages.reserve(num_pages);
  copies_.clear();
  copies_.reserve(num_pages * pages_.copies_per_page() + recent_.copies_per_page());
  for (std::size_t i = 0; i < num_pages; ++i) {
    const std::int32_t page = s.block_table[i];
    std::ranges::copy(prefix_cache_.tokens(page), std::back_inserter(host_tokens));
    host_pages.push_back(host_allocator_.take());
    pages_.add_page_copies(page, host_pages_, host_pages.back(), copies_);
  }
  host_tokens.resize(static_cast<std::size_t>(s.length));
  std::vector<std::int32_t> host_recent;  // of the newest group, if it is not whole
  if (recent_pages_for(s.length, 0) > 0) {
    host_recent.push_back(host_recent_allocator_.take());
    recent_.add_page_copies(s.recent_table.front(), host_recent_, host_recent.back(), copies_);
  }
  if (Status bad = device_->copy(copies_, stream)) {
    for (const std::int32_t page : host_pages) host_allocator_.release(page);
    for (const std::int32_t page : host_recent) host_recent_allocator_.release(page);
    return bad;
  }
  s.num_reserved = 0;
  release_pages(s, 0);
  release_recent(s, 0);
  s.is_swapped = true;
  s.host_pages = std::move(host_pages);
  s.host_recent = std::move(host_recent);
  s.host_tokens = std::move(host_tokens);
  counters_.pages_swapped_out += static_cast<std::int64_t>(num_pages);
  return std::nullopt;
}

Status KvCache::swap_in(std::int64_t sequence, Stream stream) {
  Sequence* const found = find_sequence(sequence);
  HEADRACE_TRY(check_exists(sequence, found));
  Sequence& s = *found;
  if (!s.is_swapped)
    return invalid_argument("sequence={}: is not swapped out; it can be used as it is", sequence);
  const std::size_t num_pages = s.host_pages.size();
  const std::vector<std::int32_t> hits = find_prefix(s.salt, s.host_tokens);
  // Hits in the free list are pages that the others cannot take.
  const auto num_free_hits = static_cast<std::size_t>(num_free(hits));
  const std::size_t num_needed = num_pages - hits.size() + num_free_hits;
  if (num_needed > static_cast<std::size_t>(allocator_.num_free()))
    return Failure{
        ErrorCode::out_of_memory,
        format_text("sequence={}: needs {} pages, and {} of {} are free; free or swap out "
                    "another sequence",
                    sequence, num_needed, allocator_.num_free(), allocator_.num_pages())};
  if (s.host_recent.size() > static_cast<std::size_t>(recent_allocator_.num_free()))
    return Failure{ErrorCode::out_of_memory,
                   format_text("sequence={}: needs a recent page, and none of {} is free; free or "
                               "swap out another sequence",
                               sequence, recent_allocator_.num_pages())};
  s.block_table.reserve(num_pages);
  s.recent_table.reserve(s.host_recent.size());
  copies_.clear();
  copies_.reserve((num_pages - hits.size()) * pages_.copies_per_page() + recent_.copies_per_page());
  for (const std::int32_t page : hits) {
    allocator_.share(page);
    s.block_table.push_back(page);
  }
  for (std::size_t i = hits.size(); i < num_pages; ++i) {
    s.block_table.push_back(take_page());
    host_pages_.add_page_copies(s.host_pages[i], pages_, s.block_table.back(), copies_);
  }
  for (const std::int32_t page : s.host_recent) {
    s.recent_table.push_back(recent_allocator_.take());
    host_recent_.add_page_copies(page, recent_, s.recent_table.back(), copies_);
  }
  if (Status bad = device_->copy(copies_, stream)) {
    release_pages(s, 0);
    release_recent(s, 0);
    return bad;
  }
  const std::size_t num_hit_tokens = hits.size() * static_cast<std::size_t>(options_.page_size);
  s.length = static_cast<std::int64_t>(num_hit_tokens);
  append_tokens(s, std::span<const std::int32_t>(s.host_tokens).subspan(num_hit_tokens));
  for (const std::int32_t page : s.host_pages) host_allocator_.release(page);
  for (const std::int32_t page : s.host_recent) host_recent_allocator_.release(page);
  s.is_swapped = false;
  s.host_pages.clear();
  s.host_recent.clear();
  s.host_tokens.clear();
  counters_.pages_swapped_in += static_cast<std::int64_t>(num_pages - hits.size());
  return std::nullopt;
}

}  // namespace headrace
