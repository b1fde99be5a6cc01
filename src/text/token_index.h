// Hash tables of a vocabulary. The file that fills them is not trusted: an entry that collides with
// hundreds of others is rejected, so that no crafted file makes lookups slow.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace headrace::text {

using TokenId = std::int32_t;

enum class Inserted { yes, exists, collides };

// Ids by text. Stores no text: the owner passes a function that returns it.
class TextIndex {
 public:
  explicit TextIndex(std::size_t num_texts);
  // text_of(id) returns the text of an id in the table.
  template <class TextOf>
  Inserted insert(std::string_view text, TokenId id, const TextOf& text_of) {
    const std::uint64_t hash = hash_of(text);
    const std::uint32_t tag = tag_of(hash);
    for (std::size_t i = 0, at = place_of(hash); i < kMaxProbes; ++i, at = (at + 1) & mask_) {
      Slot& slot = slots_[at];
      if (slot.id < 0) {
        slot = {tag, id};
        return Inserted::yes;
      }
      if (slot.tag == tag && text_of(slot.id) == text) return Inserted::exists;
    }
    return Inserted::collides;
  }
  // -1: none.
  template <class TextOf>
  TokenId find(std::string_view text, const TextOf& text_of) const {
    const std::uint64_t hash = hash_of(text);
    const std::uint32_t tag = tag_of(hash);
    for (std::size_t i = 0, at = place_of(hash); i < kMaxProbes; ++i, at = (at + 1) & mask_) {
      const Slot& slot = slots_[at];
      if (slot.id < 0) return -1;
      if (slot.tag == tag && text_of(slot.id) == text) return slot.id;
    }
    return -1;
  }

 private:
  static constexpr std::size_t kMaxProbes = 512;
  struct Slot {
    std::uint32_t tag = 0;
    TokenId id = -1;
  };
  static std::uint64_t hash_of(std::string_view text);
  static std::uint32_t tag_of(std::uint64_t hash) { return static_cast<std::uint32_t>(hash); }
  std::size_t place_of(std::uint64_t hash) const {
    return static_cast<std::size_t>(hash >> 32) & mask_;
  }

  std::vector<Slot> slots_;
  std::size_t mask_;
};

// A merge rule of BPE: left, right -> result.
struct Merge {
  TokenId left, right;
  std::int32_t rank;  // lower merges first
  TokenId result;
};

class MergeIndex {
 public:
  explicit MergeIndex(std::size_t num_merges);
  Inserted insert(const Merge& merge);
  const Merge* find(TokenId left, TokenId right) const;  // null: no rule

 private:
  static constexpr std::size_t kMaxProbes = 512;
  std::size_t place_of(TokenId left, TokenId right) const;

  std::vector<Merge> slots_;  // left < 0: empty
  std::size_t mask_;
};

}  // namespace headrace::text
