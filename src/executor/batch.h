// The tokens of one step.
#pragma once

#include <cstdint>
#include <span>

namespace headrace {

// Flat and ragged: whole prompts, prompt chunks and decode tokens are all rows. Tokens
// cu_seqlens_q[s] to cu_seqlens_q[s + 1] are the last of the seqused_k[s] tokens of sequence s; the
// step appends their keys and values to the cache.
struct Batch {
  std::span<const std::int32_t> tokens;        // [num_tokens], ids below vocab_size
  std::span<const std::int32_t> positions;     // [num_tokens]
  std::span<const std::int32_t> cu_seqlens_q;  // [num_seqs + 1]
  std::span<const std::int32_t> seqused_k;     // [num_seqs], including the tokens of this step
  std::span<const std::int32_t> logits_rows;   // rows whose logits are computed; may be empty

  std::int64_t num_tokens() const { return static_cast<std::int64_t>(tokens.size()); }
  std::int64_t num_seqs() const { return static_cast<std::int64_t>(seqused_k.size()); }
};

}  // namespace headrace
