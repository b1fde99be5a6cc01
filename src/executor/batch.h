// The tokens of one step, of all its sequences.
#pragma once

#include <cstdint>
#include <span>

namespace headrace {

// Flat and ragged: prompts, chunks of prompts and single tokens are rows alike. Tokens
// cu_seqlens_q[s] to cu_seqlens_q[s + 1] belong to sequence s and are the last of its seqused_k[s]
// tokens; their keys and values are appended to the cache.
struct Batch {
  std::span<const std::int32_t> tokens;        // [num_tokens], ids below vocab_size
  std::span<const std::int32_t> positions;     // [num_tokens]
  std::span<const std::int32_t> cu_seqlens_q;  // [num_seqs + 1]
  std::span<const std::int32_t> seqused_k;     // [num_seqs], the tokens of this step included
  std::span<const std::int32_t> logits_rows;   // tokens whose logits are computed; may be empty

  std::int64_t num_tokens() const { return static_cast<std::int64_t>(tokens.size()); }
  std::int64_t num_seqs() const { return static_cast<std::int64_t>(seqused_k.size()); }
};

}  // namespace headrace
