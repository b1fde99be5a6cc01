// Beam search: the most likely completions that a search of limited width finds.
#pragma once

#include <vector>

#include "engine/beam_ranking.h"

namespace headrace::engine {

// The search that beam_ranking.h describes. Best first; the session is unchanged. All beams are
// rows of one batch. invalid_argument: options out of range, no logits. out_of_memory: pages are
// missing; nothing is computed then. io_error: logits are NaN or +infinity.
Result<std::vector<Completion>> beam_search(Session& session, const text::Tokenizer& tokenizer,
                                            const BeamOptions& options, Sampler& sampler);

}  // namespace headrace::engine
