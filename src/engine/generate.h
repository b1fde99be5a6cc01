// The generation loop of a session: sample, append, emit text, until a finish reason applies.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/session.h"
#include "ops/sampling.h"
#include "text/grammar/grammar.h"
#include "text/stop_matcher.h"
#include "text/tokenizer.h"

namespace headrace::engine {

// Same values as headrace_finish.
enum class Finish { end, stop, length, cancelled };

struct GenerationOptions {
  SamplingOptions sampling;
  std::uint64_t sequence_id = 0;                // keys the random numbers, beside seed and position
  std::int64_t max_new_tokens = 0;              // 0: no limit but the context
  std::vector<std::string> stop = {};           // stop strings; not emitted
  std::shared_ptr<text::Grammar> grammar = {};  // what the text matches; null: any text
  bool ignore_end = false;
  std::function<Result<bool>(std::string_view)> on_text;  // returns false to stop; may be empty
};

struct Generation {
  std::int64_t num_tokens = 0;
  Finish finish = Finish::end;
};

// Samples from the logits of the session's last token. The first num_prompt_tokens tokens count as
// prompt, the others as output. invalid_argument: no logits, or an option is out of range.
// mask: as in SamplingInput.
Result<Sample> sample_next(const Session& session, const SamplingOptions& options,
                           std::uint64_t sequence_id, std::int64_t num_prompt_tokens,
                           Sampler& sampler, std::span<const std::uint64_t> mask = {});

Result<Generation> generate(Session& session, const text::Tokenizer& tokenizer,
                            const GenerationOptions& options, Sampler& sampler);

// A continuation of a session's sequence.
struct Completion {
  std::vector<std::int32_t> tokens;
  std::string text;
  double logprob = 0;  // of the tokens, from the unmodified logits
  double score = 0;    // what completions are ranked by; samples: logprob
  Finish finish = Finish::end;
  std::vector<float> logprobs = {};  // of each token; of beams alone
};

// Of sample `idx`; false ends the sample. May be empty.
using OnSampleText = std::function<Result<bool>(std::int64_t idx, std::string_view text)>;

// Samples n completions of a session's sequence, all in one batch; the session is unchanged. Sample
// i is that of generate() with seed + i. options.on_text is not called. invalid_argument: n, or n
// greedy samples, which would be equal. out_of_memory: pages are missing; nothing is sampled then.
Result<std::vector<Completion>> generate_n(Session& session, const text::Tokenizer& tokenizer,
                                           const GenerationOptions& options, std::int64_t n,
                                           const OnSampleText& on_text, Sampler& sampler);

}  // namespace headrace::engine
