// Finds pages that hold the keys and values of a given prefix.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace headrace {

// The contents of a full page together with everything before it in its sequence. Equal prefixes
// have equal ids: `id` is given once per contents and never reused, so that two prefixes are
// compared without their tokens. `hash` only selects a bucket.
struct Prefix {
  std::uint64_t salt;
  std::uint64_t id;  // 0: the empty prefix of this salt
  std::uint64_t hash;
};

// An index over pages: (prefix before the page, token ids of the page) -> page. Several pages may
// have equal contents; each has an entry. Memory is allocated at construction only.
class PrefixCache {
 public:
  // `hash_mask` keeps some bits of every hash, for tests: results do not depend on it.
  PrefixCache(std::int32_t num_pages, std::int64_t page_size, std::uint64_t hash_mask = UINT64_MAX);

  // Token ids of the page's slots, [page_size]. The writer of the page keeps them; while
  // contains(page), they do not change.
  std::span<std::int32_t> tokens(std::int32_t page);
  std::span<const std::int32_t> tokens(std::int32_t page) const;

  // The empty prefix. Sequences with different salts share no page.
  Prefix root(std::uint64_t salt) const;

  // A page with these tokens, [page_size], after `before`; -1 if there is none.
  std::int32_t find(const Prefix& before, std::span<const std::int32_t> tokens) const;
  // Adds a page, all of whose tokens are set. Requires !contains(page).
  void insert(std::int32_t page, const Prefix& before);
  // Removes a page. Requires contains(page).
  void erase(std::int32_t page);

  // Removes all pages.
  void clear() noexcept;

  bool contains(std::int32_t page) const { return at(page).id != 0; }
  // The prefix that ends with the page, which the cache contains.
  Prefix prefix_of(std::int32_t page) const;
  // Pages in the cache, in use or free.
  std::int32_t num_pages() const { return num_pages_; }

 private:
  struct Entry {
    std::uint64_t salt, before_id, id, hash;  // id 0: not in the cache
    std::int32_t next;                        // in the same bucket; -1: the last
  };

  Entry& at(std::int32_t page) { return entries_[static_cast<std::size_t>(page)]; }
  const Entry& at(std::int32_t page) const { return entries_[static_cast<std::size_t>(page)]; }
  std::uint64_t hash_of(const Prefix& before, std::span<const std::int32_t> tokens) const;
  std::size_t bucket_of(std::uint64_t hash) const { return hash & (buckets_.size() - 1); }

  std::size_t page_size_;
  std::uint64_t hash_mask_;
  std::vector<Entry> entries_;         // [num_pages]
  std::vector<std::int32_t> tokens_;   // [num_pages, page_size]
  std::vector<std::int32_t> buckets_;  // first page of each; -1: empty
  std::uint64_t last_id_ = 0;
  std::int32_t num_pages_ = 0;
};

}  // namespace headrace
