#include "kv_cache/prefix_cache.h"

#include <algorithm>
#include <bit>

namespace headrace {
namespace {

// The finalizer of splitmix64 (Steele, Lea, Flood 2014).
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

PrefixCache::PrefixCache(std::int32_t num_pages, std::int64_t page_size, std::uint64_t hash_mask)
    : page_size_(static_cast<std::size_t>(page_size)),
      hash_mask_(hash_mask),
      entries_(static_cast<std::size_t>(num_pages), Entry{0, 0, 0, 0, -1}),
      tokens_(static_cast<std::size_t>(num_pages) * page_size_),
      buckets_(std::bit_ceil(static_cast<std::size_t>(num_pages)), -1) {}

void PrefixCache::clear() noexcept {
  std::ranges::fill(entries_, Entry{0, 0, 0, 0, -1});
  std::ranges::fill(buckets_, -1);
  num_pages_ = 0;
}

std::span<std::int32_t> PrefixCache::tokens(std::int32_t page) {
  return {tokens_.data() + static_cast<std::size_t>(page) * page_size_, page_size_};
}

std::span<const std::int32_t> PrefixCache::tokens(std::int32_t page) const {
  return {tokens_.data() + static_cast<std::size_t>(page) * page_size_, page_size_};
}

Prefix PrefixCache::root(std::uint64_t salt) const { return {salt, 0, mix(salt + 1) & hash_mask_}; }

std::uint64_t PrefixCache::hash_of(const Prefix& before,
                                   std::span<const std::int32_t> tokens) const {
  std::uint64_t hash = before.hash;
  for (const std::int32_t token : tokens)
    hash = mix(hash + 0x9E3779B97F4A7C15u + static_cast<std::uint32_t>(token));
  return hash & hash_mask_;
}

std::int32_t PrefixCache::find(const Prefix& before, std::span<const std::int32_t> tokens) const {
  const std::uint64_t hash = hash_of(before, tokens);
  std::int32_t page = buckets_[bucket_of(hash)];
  for (; page >= 0; page = at(page).next) {
    const Entry& entry = at(page);
    // Equal hashes prove nothing: a page is only reused if all that it depends on is equal.
    if (entry.hash == hash && entry.salt == before.salt && entry.before_id == before.id &&
        std::ranges::equal(this->tokens(page), tokens))
      break;
  }
  return page;
}

void PrefixCache::insert(std::int32_t page, const Prefix& before) {
  const std::int32_t equal = find(before, tokens(page));
  const std::uint64_t hash = hash_of(before, tokens(page));
  std::int32_t& first = buckets_[bucket_of(hash)];
  at(page) = {before.salt, before.id, equal >= 0 ? at(equal).id : ++last_id_, hash, first};
  first = page;
  ++num_pages_;
}

void PrefixCache::erase(std::int32_t page) {
  std::int32_t* link = &buckets_[bucket_of(at(page).hash)];
  while (*link != page) link = &at(*link).next;
  *link = at(page).next;
  at(page).id = 0;
  --num_pages_;
}

Prefix PrefixCache::prefix_of(std::int32_t page) const {
  const Entry& entry = at(page);
  return {entry.salt, entry.id, entry.hash};
}

}  // namespace headrace
