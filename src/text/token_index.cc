#include "text/token_index.h"

#include <bit>
#include <cstring>

namespace headrace::text {
namespace {

// The load factor is at most 1/2.
std::size_t slots_for(std::size_t count) { return std::bit_ceil(2 * count + 16); }

std::uint64_t mix(std::uint64_t value) {  // the finaliser of MurmurHash3
  value = (value ^ value >> 33) * 0xFF51AFD7ED558CCDu;
  value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53u;
  return value ^ value >> 33;
}

}  // namespace

TextIndex::TextIndex(std::size_t num_texts)
    : slots_(slots_for(num_texts)), mask_(slots_.size() - 1) {}

std::uint64_t TextIndex::hash_of(std::string_view text) {
  std::uint64_t hash = text.size();
  while (!text.empty()) {
    std::uint64_t word = 0;
    const std::size_t bytes = text.size() < sizeof word ? text.size() : sizeof word;
    std::memcpy(&word, text.data(), bytes);
    hash = mix(hash ^ word);
    text.remove_prefix(bytes);
  }
  return hash;
}

MergeIndex::MergeIndex(std::size_t num_merges)
    : slots_(slots_for(num_merges), Merge{-1, -1, 0, -1}), mask_(slots_.size() - 1) {}

std::size_t MergeIndex::place_of(TokenId left, TokenId right) const {
  const auto pair = static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
                    static_cast<std::uint32_t>(right);
  return static_cast<std::size_t>(mix(pair)) & mask_;
}

Inserted MergeIndex::insert(const Merge& merge) {
  std::size_t at = place_of(merge.left, merge.right);
  for (std::size_t i = 0; i < kMaxProbes; ++i, at = (at + 1) & mask_) {
    Merge& slot = slots_[at];
    if (slot.left < 0) {
      slot = merge;
      return Inserted::yes;
    }
    if (slot.left == merge.left && slot.right == merge.right) return Inserted::exists;
  }
  return Inserted::collides;
}

const Merge* MergeIndex::find(TokenId left, TokenId right) const {
  std::size_t at = place_of(left, right);
  for (std::size_t i = 0; i < kMaxProbes; ++i, at = (at + 1) & mask_) {
    const Merge& slot = slots_[at];
    if (slot.left < 0) return nullptr;
    if (slot.left == left && slot.right == right) return &slot;
  }
  return nullptr;
}

}  // namespace headrace::text
