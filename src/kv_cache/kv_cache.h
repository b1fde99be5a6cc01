// The paged KV cache: keys and values of many sequences in pages of one pool.
//
// A sequence has a block table: token t lies in page table[t / page_size], slot t % page_size.
// Pages have reference counts, so sequences share them (fork, prefix hits). Full pages are found
// again by their tokens. The rules behind that:
//   - A page with several references, or in the prefix cache, is not written.
//   - Writers reserve slots first. reserve() copies the partly filled last page if it is shared.
//   - Pages without references keep their contents until take_page() reuses them, least recently
//     used first.
// A cache of codes also has recent pages: the keys of the newest group of recent_group() tokens of
// each sequence, and of the groups that a step writes, unquantised. commit() gives up those of
// whole groups.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/id_map.h"
#include "kv_cache/kv_pages.h"
#include "kv_cache/page_allocator.h"
#include "kv_cache/prefix_cache.h"
#include "runtime/device.h"

namespace headrace {

struct KvCacheOptions {
  KvShape shape;
  KvLayout layout = KvLayout::nhd;
  std::int64_t page_size = 16;
  std::int64_t num_pages = 0;
  std::int64_t num_host_pages = 0;       // for swap_out(); 0: none
  std::int64_t num_recent_pages = 0;     // with codes: of recent_group() tokens
  bool has_prefix_cache = true;          // false: full pages are not found by their tokens
  std::uint64_t hash_mask = UINT64_MAX;  // for tests: bits of the prefix cache's hashes
};

// What one step reads and writes, for some sequences.
struct KvBatch {
  std::span<const std::int64_t> sequences;   // [n]
  std::span<const std::int32_t> num_tokens;  // [n], reserved slots that the step writes
  std::int64_t max_pages = 0;                // row length of block_table
  // Written; null spans are not wanted.
  std::span<std::int32_t> block_table = {};   // [n, max_pages]; 0 past a sequence's last page
  std::span<std::int32_t> seqused_k = {};     // [n]: length + num_tokens
  std::span<std::int64_t> slot_mapping = {};  // [sum of num_tokens]: page * page_size + slot
  // Of a cache of codes. recent_table: [n, max_recent], from the group of the sequence's next
  // token; 0 past the last page. recent_slots: as slot_mapping, in recent pages.
  std::int64_t max_recent = 0;
  std::span<std::int32_t> recent_table = {};
  std::span<std::int64_t> recent_slots = {};
};

struct KvSequenceInfo {
  std::int64_t length;        // tokens stored
  std::int64_t num_reserved;  // slots after them
  std::int64_t num_pages;     // in the block table; 0 while swapped out
  bool is_swapped;
};

// Counters run from the creation of the cache.
struct KvCacheStats {
  std::int64_t num_pages, num_free_pages, num_used_pages;
  std::int64_t num_cached_pages;  // in the prefix cache, used or free
  std::int64_t num_shared_pages;  // with several references
  std::int64_t num_host_pages, num_free_host_pages;
  std::int64_t num_sequences, num_swapped_sequences;
  std::int64_t num_tokens;                          // in used pages; a shared one counts once
  std::int64_t num_unused_slots;                    // of used pages
  std::int64_t num_queried_tokens, num_hit_tokens;  // of prompts, in add()
  std::int64_t num_evictions;                       // pages that left the prefix cache
  std::int64_t num_page_copies;                     // copies on write
  std::int64_t num_moved_tokens;
  std::int64_t num_pages_swapped_out, num_pages_swapped_in;
};

// One thread at a time may use a cache; different caches are independent. Copies are enqueued on
// the caller's stream: kernels that read or write the pages must run in the order of that stream. A
// call that fails changes nothing.
class KvCache {
 public:
  // out_of_memory, invalid_argument. The device must outlive the cache.
  static Result<KvCache> make(Device& device, const KvCacheOptions& options);
  // That the recent pages take on the device; INT64_MAX if that overflows.
  static std::int64_t recent_bytes(const KvCacheOptions& options);

  const KvCacheOptions& options() const { return options_; }
  KvView view() const;
  bool has_codes() const { return options_.shape.has_codes(); }
  std::int64_t recent_group() const { return options_.shape.recent_group(); }
  std::int64_t num_layers() const { return options_.shape.num_layers; }
  // Pages of a layer, [num_pages, page_size, num_kv_heads, head_dim or head_dim_v].
  TensorView k_pages(std::int64_t layer) const { return pages_.k(layer); }
  TensorView v_pages(std::int64_t layer) const { return pages_.v(layer); }
  // Of codes: scales and recent pages.
  const KvPages& pages() const { return pages_; }
  const KvPages& recent_pages() const { return recent_; }

  // A new sequence that begins with the longest cached prefix of `prompt`, in whole pages and at
  // most prompt.size() - 1 tokens, so that one is left to compute logits from. The other tokens are
  // for reserve() and commit(). Only sequences with the same salt share pages.
  struct Added {
    std::int64_t sequence, num_cached;
  };
  Result<Added> add(std::span<const std::int32_t> prompt, std::uint64_t salt);
  // The longest cached prefix of `tokens`, in whole pages, and how many of its pages are free.
  struct CachedPrefix {
    std::int64_t num_tokens, num_free_pages;
  };
  CachedPrefix find(std::span<const std::int32_t> tokens, std::uint64_t salt) const;

  // Makes at least num_tokens slots after the sequence's tokens writable. out_of_memory if pages
  // are missing.
  Status reserve(std::int64_t sequence, std::int64_t num_tokens, Stream stream);
  // The keys and values of these tokens are, or will be in stream order, in the first reserved
  // slots. Pages that this fills enter the prefix cache.
  Status commit(std::int64_t sequence, std::span<const std::int32_t> tokens);
  // Copies the keys and values at `positions`, ascending and all reserved, to the first reserved
  // slots, and gives up the other reserved slots. For the accepted nodes of a draft tree; commit()
  // follows. Keys with zero points are quantised by the append that completes their group, so such
  // a move must not complete one: invalid_argument.
  Status move(std::int64_t sequence, std::span<const std::int64_t> positions, Stream stream);
  // Keeps the first `length` tokens, and no reserved slot. A cache of codes can end within a group
  // of tokens only if it is the newest: invalid_argument.
  Status truncate(std::int64_t sequence, std::int64_t length);
  // A new sequence with the same tokens, in the same pages. Requires that no slot is reserved.
  Result<std::int64_t> fork(std::int64_t sequence);
  Status free(std::int64_t sequence);

  // Frees all sequences and forgets all prefixes; also after an exception in another call.
  void clear() noexcept;

  // Moves a sequence to host pages and frees its pages; gives up reserved slots. out_of_memory if
  // host pages are missing.
  Status swap_out(std::int64_t sequence, Stream stream);
  // Back again. Pages that are still in the prefix cache are not copied. out_of_memory if pages are
  // missing.
  Status swap_in(std::int64_t sequence, Stream stream);

  Status fill_batch(const KvBatch& batch) const;
  Result<KvSequenceInfo> info(std::int64_t sequence) const;
  KvCacheStats stats() const;  // visits every page

  // For tests.
  const PageAllocator& allocator() const { return allocator_; }
  const PageAllocator& host_allocator() const { return host_allocator_; }
  const PageAllocator& recent_allocator() const { return recent_allocator_; }
  const PrefixCache& prefix_cache() const { return prefix_cache_; }
  std::span<const std::int32_t> block_table(std::int64_t sequence) const {
    return sequences_.at(sequence)->block_table;
  }
  std::span<const std::int32_t> recent_table(std::int64_t sequence) const {
    return sequences_.at(sequence)->recent_table;
  }

 private:
  struct Sequence {
    std::uint64_t salt = 0;
    std::int64_t length = 0;
    std::int64_t num_reserved = 0;
    std::vector<std::int32_t> block_table;  // pages of length + num_reserved slots
    // With codes: recent pages from the group of slot `length` to that of the last slot.
    std::vector<std::int32_t> recent_table = {};
    // While swapped out: the pages and the tokens.
    bool is_swapped = false;
    std::vector<std::int32_t> host_pages = {};
    std::vector<std::int32_t> host_recent = {};
    std::vector<std::int32_t> host_tokens = {};
  };
  struct Counters {
    std::int64_t queried_tokens = 0, hit_tokens = 0, evictions = 0, page_copies = 0,
                 moved_tokens = 0, pages_swapped_out = 0, pages_swapped_in = 0;
  };

  struct Memory {
    KvPages pages, host, recent, host_recent;
  };
  KvCache(Device& device, const KvCacheOptions& options, Memory memory);

  const Sequence& insert(std::int64_t id, Sequence sequence);
  // Null: not in the cache.
  const Sequence* find_sequence(std::int64_t sequence) const;
  Sequence* find_sequence(std::int64_t sequence);
  // Of what find_sequence() gave.
  static Status check_exists(std::int64_t sequence, const Sequence* found);
  static Status check_on_device(std::int64_t sequence, const Sequence* found);
  Status check_batch(const KvBatch& batch) const;
  Status check_batch_entry(const KvBatch& batch, std::size_t i) const;
  std::int64_t max_length() const;
  std::int64_t pages_for(std::int64_t num_tokens) const;
  // Cached pages of the longest prefix of `tokens`.
  std::vector<std::int32_t> find_prefix(std::uint64_t salt,
                                        std::span<const std::int32_t> tokens) const;
  std::int64_t num_free(std::span<const std::int32_t> pages) const;
  Prefix prefix_before(const Sequence& s, std::int64_t page_idx) const;
  bool has_shared_tail(const Sequence& s) const;
  Status own_tail(Sequence& s, Stream stream);
  std::int32_t take_page();
  void uncache(std::int32_t page);
  void append_tokens(Sequence& s, std::span<const std::int32_t> tokens);
  void release_pages(Sequence& s, std::int64_t num_kept);
  // With codes (kv_cache_recent.cc); without they do nothing.
  std::int64_t recent_pages_for(std::int64_t length, std::int64_t num_reserved) const;
  Status check_recent(std::int64_t sequence, const Sequence& s, std::int64_t num_tokens) const;
  bool has_shared_recent(const Sequence& s) const;
  Status reserve_recent(Sequence& s, std::int64_t num_tokens, Stream stream);
  void drop_recent(Sequence& s, std::int64_t from_length);
  void release_recent(Sequence& s, std::int64_t num_kept);

  Device* device_;
  KvCacheOptions options_;
  KvPages pages_, host_pages_, recent_, host_recent_;
  PageAllocator allocator_, host_allocator_, recent_allocator_, host_recent_allocator_;
  PrefixCache prefix_cache_;
  IdMap<std::unique_ptr<Sequence>> sequences_;
  std::int64_t last_sequence_ = 0;
  Counters counters_;
  std::vector<ByteCopy> copies_;  // of one call
};

}  // namespace headrace
