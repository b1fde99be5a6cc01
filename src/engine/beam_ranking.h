// What a beam search keeps of its beams: no sequences, no model.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/generate.h"

namespace headrace::engine {

struct BeamOptions {
  std::int64_t beam_width = 4;
  double length_penalty = 1;        // score = logprob / num_tokens^length_penalty
  std::int64_t max_new_tokens = 0;  // 0: no limit but the context
  bool ignore_end = false;
};

// invalid_argument.
Status check_beam_options(const BeamOptions& options, const text::Tokenizer& tokenizer,
                          std::int64_t vocab_size);

// Every step continues each beam with every token and ranks these candidates by log-probability;
// ties: the lowest token, then the lowest beam. An end token among the first beam_width candidates
// finishes a completion; the first beam_width of the others are the next beams. The beam_width
// completions of the highest score are kept (ties: the first). The search ends when the best beam
// scores no higher than the worst of them, or at the limit, where beams become completions.
class BeamRanking {
 public:
  // The options are valid. room: tokens that fit the sequence behind its prompt. There is one beam,
  // without tokens.
  BeamRanking(const BeamOptions& options, const text::Tokenizer& tokenizer, std::int64_t vocab_size,
              std::int64_t room);

  // Greedy, with as many top_logprobs as a beam can have candidates that count.
  const SamplingOptions& sampling() const { return sampling_; }
  // The most likely tokens behind a beam, as sampling() reports them.
  void set_candidates(std::size_t beam, std::span<const TokenLogprob> top);
  // Every beam has candidates since the last advance().
  bool is_complete() const;

  // Ranks the candidates. True: the search has ended.
  bool advance();
  // Of each of the next beams: the beam that it continues, and with which token.
  std::span<const std::size_t> parents() const { return parents_; }
  std::span<const std::int32_t> tokens() const { return last_tokens_; }

  // The completions, best first.
  Result<std::vector<Completion>> take();

 private:
  struct Beam {
    std::vector<std::int32_t> tokens = {};
    std::vector<float> logprobs = {};
    double logprob = 0;
    bool has_candidates = false;
  };
  struct Candidate {
    double logprob;
    std::int32_t token;
    std::size_t beam;
    float token_logprob;
  };

  bool is_end(std::int32_t token) const;
  double score_of(double logprob) const;
  void select();
  void finish(const Beam& beam, Finish reason);
  bool is_decided() const;

  BeamOptions options_;
  const text::Tokenizer& tokenizer_;
  std::size_t width_;
  std::int64_t room_;
  SamplingOptions sampling_;
  std::int64_t num_tokens_ = 0;            // of each beam
  std::vector<Beam> beams_ = {{}};         // the best first
  std::vector<Candidate> candidates_;      // of the beams
  std::vector<std::size_t> parents_;       // [beams]
  std::vector<std::int32_t> last_tokens_;  // [beams]
  std::vector<Completion> finished_;       // the best first
};

}  // namespace headrace::engine
