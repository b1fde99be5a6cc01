// Recent pages: the newest keys of a cache of codes, unquantised.
#include "base/math.h"
#include "kv_cache/kv_cache.h"

namespace headrace {

KvView KvCache::view() const {
  KvView view = pages_.kv_view();
  if (!has_codes()) return view;
  const KvView recent = recent_.kv_view();
  view.recent = {.k = recent.k,
                 .v = recent.v,
                 .page_size = recent_group(),
                 .num_pages = recent.num_pages,
                 .layer_bytes = recent.layer_bytes};
  return view;
}

// Groups from that of slot `length`, if a token is in it, to that of the last reserved slot.
std::int64_t KvCache::recent_pages_for(std::int64_t length, std::int64_t num_reserved) const {
  if (!has_codes()) return 0;
  return ceil_div(length + num_reserved, recent_group()) - length / recent_group();
}

// Whether the group of the next token is shared. Reserved slots are not.
bool KvCache::has_shared_recent(const Sequence& s) const {
  return s.num_reserved == 0 && !s.recent_table.empty() &&
         recent_allocator_.num_refs(s.recent_table.front()) > 1;
}

Status KvCache::check_recent(std::int64_t sequence, const Sequence& s,
                             std::int64_t num_tokens) const {
  const std::int64_t num_needed = recent_pages_for(s.length, num_tokens) -
                                  static_cast<std::int64_t>(s.recent_table.size()) +
                                  (has_shared_recent(s) ? 1 : 0);
  if (num_needed <= recent_allocator_.num_free()) return std::nullopt;
  return Failure{
      ErrorCode::out_of_memory,
      format_text("num_tokens={}: sequence {} needs {} recent pages of {} tokens, and {} of "
                  "num_recent_pages={} are free; commit fewer tokens at a time, free a sequence or "
                  "create the cache with more recent pages",
                  num_tokens, sequence, num_needed, recent_group(), recent_allocator_.num_free(),
                  recent_allocator_.num_pages())};
}

Status KvCache::reserve_recent(Sequence& s, std::int64_t num_tokens, Stream stream) {
  const auto num_pages = static_cast<std::size_t>(recent_pages_for(s.length, num_tokens));
  s.recent_table.reserve(num_pages);
  if (has_shared_recent(s)) {
    copies_.clear();
    copies_.reserve(recent_.copies_per_page());
    const std::int32_t copy = recent_allocator_.take();
    recent_.add_page_copies(s.recent_table.front(), recent_, copy, copies_);
    if (Status bad = device_->copy(copies_, stream)) {
      recent_allocator_.release(copy);
      return bad;
    }
    recent_allocator_.release(s.recent_table.front());
    s.recent_table.front() = copy;
  }
  while (s.recent_table.size() < num_pages) s.recent_table.push_back(recent_allocator_.take());
  return std::nullopt;
}

// After the sequence has grown from `from_length`: whole groups are read as codes from now on.
void KvCache::drop_recent(Sequence& s, std::int64_t from_length) {
  if (!has_codes()) return;
  const std::int64_t num_whole = s.length / recent_group() - from_length / recent_group();
  const auto begin = s.recent_table.begin();
  for (std::int64_t i = 0; i < num_whole; ++i) recent_allocator_.release(begin[i]);
  s.recent_table.erase(begin, begin + num_whole);
}

void KvCache::release_recent(Sequence& s, std::int64_t num_kept) {
  while (static_cast<std::int64_t>(s.recent_table.size()) > num_kept) {
    recent_allocator_.release(s.recent_table.back());
    s.recent_table.pop_back();
  }
}

}  // namespace headrace
