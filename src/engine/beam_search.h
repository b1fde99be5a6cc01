// Beam search: the most likely completions that a search of limited width finds.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/generate.h"

namespace headrace::engine {

struct BeamOptions {
  std::int64_t beam_width = 4;
  double length_penalty = 1;        // score = logprob / num_tokens^length_penalty
  std::int64_t max_new_tokens = 0;  // 0: no limit but the context
  bool ignore_end = false;
};

// Every step continues each beam with every token and ranks these candidates by log-probability;
// ties: the lowest token, then the lowest beam. An end token among the first beam_width candidates
// finishes a completion; the first beam_width of the others are the next beams. The beam_width
// completions of the highest score are kept (ties: the first). The search ends when the best beam
// scores no higher than the worst of them, or at the limit, where beams become completions.
//
// Best first; the session is unchanged. All beams are rows of one batch. invalid_argument: options
// out of range, no logits. out_of_memory: pages are missing; nothing is computed then. io_error:
// logits are NaN or +infinity.
Result<std::vector<Completion>> beam_search(Session& session, const text::Tokenizer& tokenizer,
                                            const BeamOptions& options, Sampler& sampler);

}  // namespace headrace::engine
