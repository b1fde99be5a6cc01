#include "kv_cache/kv_cache.h"

#include <algorithm>

#include "base/math.h"

namespace headrace {
namespace {

// A negative id is a placeholder: two of them are equal though their keys and values are not, so
// the prefix cache must not see one.
Status check_tokens(std::span<const std::int32_t> tokens) {
  const auto bad = std::ranges::find_if(tokens, [](std::int32_t token) { return token < 0; });
  if (bad == tokens.end()) return std::nullopt;
  return invalid_argument("tokens[{}]={}: must be 0 or more; pass ids of the vocabulary",
                          bad - tokens.begin(), *bad);
}

}  // namespace

// ---- a new sequence ----

Result<KvCache::Added> KvCache::add(std::span<const std::int32_t> prompt, std::uint64_t salt) {
  if (prompt.size() > static_cast<std::size_t>(max_length()))
    return invalid_argument(
        "num_tokens={}: a sequence has at most {} tokens; shorten it or create the cache with more "
        "pages",
        prompt.size(), max_length());
  if (Status bad = check_tokens(prompt)) return std::move(*bad);
  const std::size_t last = prompt.empty() ? 0 : prompt.size() - 1;
  std::vector<std::int32_t> hits = find_prefix(salt, prompt.first(last));
  const std::int64_t num_cached = static_cast<std::int64_t>(hits.size()) * options_.page_size;
  const std::int64_t id = last_sequence_ + 1;
  const Sequence& s =
      insert(id, Sequence{.salt = salt, .length = num_cached, .block_table = std::move(hits)});
  // Hits leave the free list here, before anything is allocated that could evict them.
  for (const std::int32_t page : s.block_table) allocator_.share(page);
  last_sequence_ = id;
  counters_.queried_tokens += static_cast<std::int64_t>(prompt.size());
  counters_.hit_tokens += num_cached;
  return Added{id, num_cached};
}

const KvCache::Sequence& KvCache::insert(std::int64_t id, Sequence sequence) {
  return *sequences_.set(id, std::make_unique<Sequence>(std::move(sequence)));
}

KvCache::CachedPrefix KvCache::find(std::span<const std::int32_t> tokens,
                                    std::uint64_t salt) const {
  const std::vector<std::int32_t> hits = find_prefix(salt, tokens);
  return {static_cast<std::int64_t>(hits.size()) * options_.page_size, num_free(hits)};
}

std::int64_t KvCache::num_free(std::span<const std::int32_t> pages) const {
  return std::ranges::count_if(pages,
                               [&](std::int32_t page) { return allocator_.num_refs(page) == 0; });
}

std::vector<std::int32_t> KvCache::find_prefix(std::uint64_t salt,
                                               std::span<const std::int32_t> tokens) const {
  const auto page_size = static_cast<std::size_t>(options_.page_size);
  std::vector<std::int32_t> pages;
  Prefix before = prefix_cache_.root(salt);
  for (; tokens.size() >= page_size; tokens = tokens.subspan(page_size)) {
    const std::int32_t page = prefix_cache_.find(before, tokens.first(page_size));
    if (page < 0) break;
    pages.push_back(page);
    before = prefix_cache_.prefix_of(page);
  }
  return pages;
}

Result<std::int64_t> KvCache::fork(std::int64_t sequence) {
  const Sequence* const found = find_sequence(sequence);
  if (Status bad = check_on_device(sequence, found)) return std::move(*bad);
  const Sequence& parent = *found;
  if (parent.num_reserved > 0)
    return invalid_argument(
        "sequence={}: has {} reserved slots, which a fork would share; commit their tokens or "
        "truncate the sequence first",
        sequence, parent.num_reserved);
  const std::int64_t id = last_sequence_ + 1;
  const Sequence& fork = insert(id, Sequence(parent));
  for (const std::int32_t page : fork.block_table) allocator_.share(page);
  for (const std::int32_t page : fork.recent_table) recent_allocator_.share(page);
  last_sequence_ = id;
  return id;
}

// ---- slots for new tokens ----

Status KvCache::reserve(std::int64_t sequence, std::int64_t num_tokens, Stream stream) {
  Sequence* const found = find_sequence(sequence);
  HEADRACE_TRY(check_on_device(sequence, found));
  Sequence& s = *found;
  const std::int64_t max_more = max_length() - s.length;
  if (num_tokens < 0 || num_tokens > max_more)
    return invalid_argument(
        "num_tokens={}: must be 0 to {}: sequence {} holds {} of at most {} tokens; shorten it or "
        "create the cache with more pages",
        num_tokens, max_more, sequence, s.length, max_length());
  if (num_tokens <= s.num_reserved) return std::nullopt;

  const auto num_held = static_cast<std::int64_t>(s.block_table.size());
  const std::int64_t num_new = pages_for(s.length + num_tokens) - num_held;
  const std::int64_t num_needed = num_new + (has_shared_tail(s) ? 1 : 0);
  if (num_needed > allocator_.num_free())
    return Failure{ErrorCode::out_of_memory,
                   format_text("num_tokens={}: sequence {} needs {} pages, and {} of {} are free; "
                               "free or swap out a sequence",
                               num_tokens, sequence, num_needed, allocator_.num_free(),
                               allocator_.num_pages())};
  HEADRACE_TRY(check_recent(sequence, s, num_tokens));
  s.block_table.reserve(static_cast<std::size_t>(num_held + num_new));
  HEADRACE_TRY(own_tail(s, stream));
  HEADRACE_TRY(reserve_recent(s, num_tokens, stream));
  for (std::int64_t i = 0; i < num_new; ++i) s.block_table.push_back(take_page());
  s.num_reserved = num_tokens;
  return std::nullopt;
}

// seqused_k and page numbers are int32.
std::int64_t KvCache::max_length() const {
  return std::min<std::int64_t>(INT32_MAX, options_.num_pages * options_.page_size);
}

// Whether the slot after the last token lies in a page of several sequences. Reserved slots do not.
bool KvCache::has_shared_tail(const Sequence& s) const {
  const bool has_partial_page = s.num_reserved == 0 && s.length % options_.page_size != 0;
  return has_partial_page && allocator_.num_refs(s.block_table.back()) > 1;
}

// Makes the slot after the last token writable. The last of several holders of a page writes in
// place: it needs no copy.
Status KvCache::own_tail(Sequence& s, Stream stream) {
  if (s.num_reserved > 0 || s.length % options_.page_size == 0) return std::nullopt;
  std::int32_t& tail = s.block_table.back();
  if (!has_shared_tail(s)) {
    if (prefix_cache_.contains(tail)) uncache(tail);  // full until the sequence was truncated
    return std::nullopt;
  }
  copies_.clear();
  copies_.reserve(pages_.copies_per_page());
  const std::int32_t copy = take_page();
  pages_.add_page_copies(tail, pages_, copy, copies_);
  if (Status bad = device_->copy(copies_, stream)) {
    allocator_.release(copy, PageAllocator::Reuse::first);
    return bad;
  }
  std::ranges::copy(prefix_cache_.tokens(tail), prefix_cache_.tokens(copy).begin());
  allocator_.release(tail);
  tail = copy;
  ++counters_.page_copies;
  return std::nullopt;
}

Status KvCache::commit(std::int64_t sequence, std::span<const std::int32_t> tokens) {
  Sequence* const found = find_sequence(sequence);
  HEADRACE_TRY(check_on_device(sequence, found));
  Sequence& s = *found;
  if (tokens.size() > static_cast<std::size_t>(s.num_reserved))
    return invalid_argument(
        "num_tokens={}: sequence {} has {} reserved slots; reserve slots before keys and values "
        "are "
        "written",
        tokens.size(), sequence, s.num_reserved);
  HEADRACE_TRY(check_tokens(tokens));
  const std::int64_t length = s.length;
  append_tokens(s, tokens);
  s.num_reserved -= static_cast<std::int64_t>(tokens.size());
  drop_recent(s, length);
  return std::nullopt;
}

void KvCache::append_tokens(Sequence& s, std::span<const std::int32_t> tokens) {
  const std::int64_t page_size = options_.page_size;
  while (!tokens.empty()) {
    const std::int64_t page_idx = s.length / page_size, slot = s.length % page_size;
    const std::int32_t page = s.block_table[static_cast<std::size_t>(page_idx)];
    const auto part =
        tokens.first(std::min(tokens.size(), static_cast<std::size_t>(page_size - slot)));
    std::ranges::copy(part, prefix_cache_.tokens(page).begin() + slot);
    tokens = tokens.subspan(part.size());
    s.length += static_cast<std::int64_t>(part.size());
    if (options_.has_prefix_cache && s.length % page_size == 0)
      prefix_cache_.insert(page, prefix_before(s, page_idx));
  }
}

// Every full page of a sequence is in the prefix cache, so the page before knows the prefix.
Prefix KvCache::prefix_before(const Sequence& s, std::int64_t page_idx) const {
  if (page_idx == 0) return prefix_cache_.root(s.salt);
  return prefix_cache_.prefix_of(s.block_table[static_cast<std::size_t>(page_idx - 1)]);
}

Status KvCache::move(std::int64_t sequence, std::span<const std::int64_t> positions,
                     Stream stream) {
  Sequence* const found = find_sequence(sequence);
  HEADRACE_TRY(check_on_device(sequence, found));
  Sequence& s = *found;
  const std::int64_t end = s.length + s.num_reserved;
  std::int64_t previous = s.length - 1;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] <= previous || positions[i] >= end)
      return invalid_argument(
          "positions[{}]={}: must be {} to {}, the reserved positions of sequence {}, and above "
          "the "
          "one before it; sort the positions, or reserve more slots first",
          i, positions[i], s.length, end - 1, sequence);
    previous = positions[i];
  }
  const auto num_kept = static_cast<std::int64_t>(positions.size());
  const bool is_in_place = num_kept == 0 || positions.back() == s.length + num_kept - 1;
  if (options_.shape.has_components && !is_in_place)
    return invalid_argument(
        "num_positions={}: the cache has keys by component, of which single tokens are not moved; "
        "truncate the sequence and compute the tokens anew",
        num_kept);
  const std::int64_t group_end = (s.length / recent_group() + 1) * recent_group();
  if (has_zero_points(options_.shape.k_dtype) && !is_in_place && s.length + num_kept >= group_end)
    return invalid_argument(
        "num_positions={}: would complete a group of {} keys, which the append of its last token "
        "quantises; move at most {} positions and compute the tokens behind them anew",
        num_kept, recent_group(), group_end - s.length - 1);
  const auto slot_of = [&](std::int64_t position) {
    const auto page_idx = static_cast<std::size_t>(position / options_.page_size);
    return s.block_table[page_idx] * options_.page_size + position % options_.page_size;
  };
  const auto recent_slot_of = [&](std::int64_t position) {
    const auto idx =
        static_cast<std::size_t>(position / recent_group() - s.length / recent_group());
    return s.recent_table[idx] * recent_group() + position % recent_group();
  };
  copies_.clear();
  std::int64_t to = s.length, num_moved = 0;
  for (const std::int64_t from : positions) {
    if (from != to) {
      pages_.add_slot_copies(slot_of(from), slot_of(to), copies_);
      if (has_codes()) recent_.add_slot_copies(recent_slot_of(from), recent_slot_of(to), copies_);
      ++num_moved;
    }
    ++to;
  }
  HEADRACE_TRY(device_->copy(copies_, stream));
  counters_.moved_tokens += num_moved;
  s.num_reserved = to - s.length;
  release_pages(s, pages_for(to));
  release_recent(s, recent_pages_for(s.length, s.num_reserved));
  return std::nullopt;
}

// ---- pages that are no longer needed ----

Status KvCache::truncate(std::int64_t sequence, std::int64_t length) {
  Sequence* const found = find_sequence(sequence);
  HEADRACE_TRY(check_on_device(sequence, found));
  Sequence& s = *found;
  if (length < 0 || length > s.length)
    return invalid_argument("length={}: sequence {} holds {} tokens; pass 0 to {}", length,
                            sequence, s.length, s.length);
  const bool is_same_group = length / recent_group() == s.length / recent_group();
  if (has_codes() && !is_same_group && length % recent_group() != 0)
    return invalid_argument(
        "length={}: the cache has codes, and the keys of this group of {} tokens are no longer "
        "there "
        "unquantised; truncate to {} and append the other tokens again",
        length, recent_group(), length / recent_group() * recent_group());
  release_recent(s, is_same_group ? recent_pages_for(length, 0) : 0);
  s.length = length;
  s.num_reserved = 0;
  release_pages(s, pages_for(length));
  return std::nullopt;
}

void KvCache::clear() noexcept {
  sequences_.clear();
  allocator_.clear();
  host_allocator_.clear();
  recent_allocator_.clear();
  host_recent_allocator_.clear();
  prefix_cache_.clear();
}

Status KvCache::free(std::int64_t sequence) {
  Sequence* const found = find_sequence(sequence);
  HEADRACE_TRY(check_exists(sequence, found));
  Sequence& s = *found;
  release_pages(s, 0);
  release_recent(s, 0);
  for (const std::int32_t page : s.host_pages) host_allocator_.release(page);
  for (const std::int32_t page : s.host_recent) host_recent_allocator_.release(page);
  sequences_.erase(sequence);
  return std::nullopt;
}

// The last page first, so that the beginning of a sequence, which others are more likely to share,
// is evicted last. Pages that no prefix leads to are reused before all others.
void KvCache::release_pages(Sequence& s, std::int64_t num_kept) {
  while (static_cast<std::int64_t>(s.block_table.size()) > num_kept) {
    const std::int32_t page = s.block_table.back();
    s.block_table.pop_back();
    allocator_.release(page, prefix_cache_.contains(page) ? PageAllocator::Reuse::last
                                                          : PageAllocator::Reuse::first);
  }
}

std::int32_t KvCache::take_page() {
  const std::int32_t page = allocator_.take();
  if (prefix_cache_.contains(page)) uncache(page);
  return page;
}

void KvCache::uncache(std::int32_t page) {
  prefix_cache_.erase(page);
  ++counters_.evictions;
}

}  // namespace headrace
