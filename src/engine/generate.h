// Text out of a session: sample, append, put out, until something ends it.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/session.h"
#include "ops/sampling.h"
#include "text/stop_matcher.h"
#include "text/tokenizer.h"

namespace headrace::engine {

// Same values as headrace_finish.
enum class Finish { end, stop, length, cancelled };

struct GenerationOptions {
  SamplingOptions sampling;
  std::uint64_t sequence_id = 0;    // keys the random numbers, beside seed and position
  std::int64_t max_new_tokens = 0;  // 0: until the end or the session is full
  std::vector<std::string> stop;    // texts that end it and are not put out
  bool ignore_end = false;
  std::function<Result<bool>(std::string_view)> on_text;  // false ends it; may be empty
};

struct Generation {
  std::int64_t num_tokens = 0;
  Finish finish = Finish::end;
};

// Draws from the logits behind the session's last token. Tokens of the sequence from
// num_prompt_tokens on are output. invalid_argument: there are no logits, or the options have no
// meaning.
Result<Sample> sample_next(const Session& session, const SamplingOptions& options,
                           std::uint64_t sequence_id, std::int64_t num_prompt_tokens,
                           Sampler& sampler);

Result<Generation> generate(Session& session, const text::Tokenizer& tokenizer,
                            const GenerationOptions& options, Sampler& sampler);

}  // namespace headrace::engine
