// The tokens of one step.
#pragma once

#include <cstdint>
#include <span>

#include "core/sparq_args.h"

namespace headrace {

// Sequences whose first keys are in the same pages are neighbours where these are so many or more.
inline constexpr std::int64_t kPrefixStep = 512;

// Flat and ragged: whole prompts, prompt chunks and decode tokens are all rows. Tokens
// cu_seqlens_q[s] to cu_seqlens_q[s + 1] are the last of the seqused_k[s] tokens of sequence s; the
// step writes their keys and values to their slots. Sequences of more tokens come first.
struct Batch {
  std::span<const std::int32_t> tokens;        // [num_tokens], ids below vocab_size; on a GPU also
                                               // -1 - i for drawn_tokens[i]
  std::span<const std::int32_t> positions;     // [num_tokens]
  std::span<const std::int64_t> slot_mapping;  // [num_tokens]: page * page_size + slot in the page
  std::span<const std::int32_t> cu_seqlens_q;  // [num_seqs + 1]
  std::span<const std::int32_t> seqused_k;     // [num_seqs], including the tokens of this step
  std::span<const std::int32_t> block_table;   // [num_seqs, max_pages], page numbers
  // Of a cache of codes, in its recent pages: slots of the tokens, and of each sequence the pages
  // from the group of its first token in this step. Empty without.
  std::span<const std::int64_t> recent_slots = {};  // [num_tokens]
  std::span<const std::int32_t> recent_table = {};  // [num_seqs, max_recent]
  std::span<const std::int32_t> logits_rows;        // rows whose logits are computed; may be empty
  const std::int32_t* drawn_tokens = nullptr;       // in memory of the device
  std::int64_t max_seqlen_q = 0;                    // most tokens of one sequence in this step
  std::int64_t max_seqlen_k = 0;                    // largest seqused_k
  // Given: SparQ attention, of one token of each sequence. The cache has components.
  SparqSizes sparq = {};

  std::int64_t num_tokens() const { return static_cast<std::int64_t>(tokens.size()); }
  std::int64_t num_seqs() const { return static_cast<std::int64_t>(seqused_k.size()); }
  std::int64_t max_pages() const {
    return static_cast<std::int64_t>(block_table.size()) / num_seqs();
  }
  std::int64_t max_recent() const {
    return static_cast<std::int64_t>(recent_table.size()) / num_seqs();
  }
};

}  // namespace headrace
