#include "engine/beam_search.h"

#include "engine/branches.h"

namespace headrace::engine {

Result<std::vector<Completion>> beam_search(Session& session, const text::Tokenizer& tokenizer,
                                            const BeamOptions& options, Sampler& sampler) {
  const std::int64_t vocab_size = session.decoder().config.vocab_size;
  if (Status bad = check_beam_options(options, tokenizer, vocab_size)) return std::move(*bad);
  Result<Branches> made =
      Branches::make(session, "beam_width", options.beam_width, options.max_new_tokens);
  if (!made.ok()) return std::move(made.failure());
  Branches& branches = made.value();
  BeamRanking ranking(options, tokenizer, vocab_size,
                      session.max_tokens() - std::ssize(session.tokens()));
  for (std::size_t num_beams = 1;; num_beams = ranking.tokens().size()) {
    for (std::size_t i = 0; i < num_beams; ++i) {
      Result<Sample> sample = sampler.sample({.logits = branches.logits(i)}, ranking.sampling());
      if (!sample.ok()) return std::move(sample.failure());
      ranking.set_candidates(i, sample.value().top_logprobs);
    }
    if (ranking.advance()) return ranking.take();
    if (Status bad = branches.advance(ranking.parents(), ranking.tokens())) return std::move(*bad);
  }
}

}  // namespace headrace::engine
