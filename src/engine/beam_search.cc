#include "engine/beam_search.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "engine/branches.h"

namespace headrace::engine {
namespace {

constexpr double kMaxLengthPenalty = 10;

Status check_options(const BeamOptions& o, std::int64_t vocab_size, std::size_t num_ends) {
  const std::int64_t widest =
      std::min<std::int64_t>(vocab_size, kMaxLogprobs - static_cast<std::int64_t>(num_ends));
  if (o.beam_width < 1 || o.beam_width > widest)
    return invalid_argument(
        "beam_width={}: must be 1 to {} for a vocabulary of {} tokens; pass "
        "a width in that range",
        o.beam_width, widest, vocab_size);
  if (!(o.length_penalty >= 0 && o.length_penalty <= kMaxLengthPenalty))
    return invalid_argument(
        "length_penalty={}: must be 0 to {}; pass 1 to rank by the mean log-probability",
        o.length_penalty, kMaxLengthPenalty);
  if (o.max_new_tokens < 0)
    return invalid_argument("max_new_tokens={}: must not be negative; pass 0 for no limit",
                            o.max_new_tokens);
  return std::nullopt;
}

class Search {
 public:
  Search(const Session& session, const text::Tokenizer& tokenizer, const BeamOptions& options,
         Sampler& sampler, Branches branches)
      : tokenizer_(tokenizer),
        options_(options),
        width_(static_cast<std::size_t>(options.beam_width)),
        room_(session.max_tokens() - static_cast<std::int64_t>(session.tokens().size())),
        sampler_(sampler),
        branches_(std::move(branches)) {
    const auto vocab_size = session.decoder().config.vocab_size;
    const auto num_ends = static_cast<std::int64_t>(tokenizer.end_tokens().size());
    // Of the tokens of a beam, at most num_ends are end tokens: these are enough.
    sampling_.temperature = 0;
    sampling_.num_logprobs = static_cast<int>(std::min(vocab_size, options.beam_width + num_ends));
  }

  Status run() {
    beams_.push_back({});
    while (!beams_.empty()) {
      Result<std::vector<Candidate>> candidates = rank_candidates();
      if (!candidates.ok()) return std::move(candidates.failure());
      ++num_tokens_;
      select(candidates.value());
      if (num_tokens_ == options_.max_new_tokens || num_tokens_ > room_) {
        for (const Beam& beam : beams_) finish(beam, Finish::length);
        return std::nullopt;
      }
      if (beams_.empty() || is_decided()) return std::nullopt;
      HEADRACE_TRY(branches_.advance(parents_, last_tokens_));
    }
    return std::nullopt;
  }

  Result<std::vector<Completion>> take() {
    for (Completion& completion : finished_) {
      text::StreamDecoder decoder(tokenizer_);
      for (const std::int32_t token : completion.tokens) {
        if (is_end(token)) break;
        Result<std::string> text = decoder.push(token);
        if (!text.ok()) return std::move(text.failure());
        completion.text += text.value();
      }
      completion.text += decoder.flush();
    }
    return std::move(finished_);
  }

 private:
  struct Beam {
    std::vector<std::int32_t> tokens;
    double logprob = 0;
  };
  struct Candidate {
    double logprob;
    std::int32_t token;
    std::size_t beam;
  };

  bool is_end(std::int32_t token) const {
    return !options_.ignore_end && std::ranges::binary_search(tokenizer_.end_tokens(), token);
  }
  double score_of(double logprob) const {
    return logprob / std::pow(static_cast<double>(num_tokens_), options_.length_penalty);
  }

  // The best first.
  Result<std::vector<Candidate>> rank_candidates() {
    std::vector<Candidate> candidates;
    for (std::size_t i = 0; i < beams_.size(); ++i) {
      Result<Sample> sample = sampler_.sample({.logits = branches_.logits(i)}, sampling_);
      if (!sample.ok()) return std::move(sample.failure());
      for (const auto& [token, logprob] : sample.value().top_logprobs)
        if (!std::isinf(logprob))
          candidates.push_back({beams_[i].logprob + static_cast<double>(logprob), token, i});
    }
    std::ranges::sort(candidates, [](const Candidate& a, const Candidate& b) {
      return std::tie(b.logprob, a.token, a.beam) < std::tie(a.logprob, b.token, b.beam);
    });
    return candidates;
  }

  void select(std::span<const Candidate> candidates) {
    std::vector<Beam> next;
    parents_.clear();
    last_tokens_.clear();
    for (std::size_t rank = 0; rank < candidates.size(); ++rank) {
      const Candidate& candidate = candidates[rank];
      if (next.size() == width_) break;
      if (is_end(candidate.token) && rank >= width_) continue;
      Beam beam{beams_[candidate.beam].tokens, candidate.logprob};
      beam.tokens.push_back(candidate.token);
      if (is_end(candidate.token)) {
        finish(beam, Finish::end);
        continue;
      }
      next.push_back(std::move(beam));
      parents_.push_back(candidate.beam);
      last_tokens_.push_back(candidate.token);
    }
    beams_ = std::move(next);
  }

  void finish(const Beam& beam, Finish reason) {
    const double score = score_of(beam.logprob);
    const auto place =
        std::ranges::upper_bound(finished_, score, std::greater<>(), &Completion::score);
    finished_.insert(place, {.tokens = beam.tokens,
                             .text = {},
                             .logprob = beam.logprob,
                             .score = score,
                             .finish = reason});
    if (finished_.size() > width_) finished_.pop_back();
  }

  bool is_decided() const {
    return finished_.size() == width_ && score_of(beams_[0].logprob) <= finished_.back().score;
  }

  const text::Tokenizer& tokenizer_;
  const BeamOptions& options_;
  std::size_t width_;
  std::int64_t room_;  // tokens that still fit the sequence
  Sampler& sampler_;
  SamplingOptions sampling_;
  Branches branches_;
  std::int64_t num_tokens_ = 0;            // of each beam
  std::vector<Beam> beams_;                // the best first
  std::vector<std::size_t> parents_;       // [beams]
  std::vector<std::int32_t> last_tokens_;  // [beams]
  std::vector<Completion> finished_;       // the best first
};

}  // namespace

Result<std::vector<Completion>> beam_search(Session& session, const text::Tokenizer& tokenizer,
                                            const BeamOptions& options, Sampler& sampler) {
  if (auto bad = check_options(options, session.decoder().config.vocab_size,
                               tokenizer.end_tokens().size()))
    return std::move(*bad);
  Result<Branches> branches =
      Branches::make(session, "beam_width", options.beam_width, options.max_new_tokens);
  if (!branches.ok()) return std::move(branches.failure());
  Search search(session, tokenizer, options, sampler, std::move(branches.value()));
  if (auto bad = search.run()) return std::move(*bad);
  return search.take();
}

}  // namespace headrace::engine
