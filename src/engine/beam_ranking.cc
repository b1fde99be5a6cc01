#include "engine/beam_ranking.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace headrace::engine {
namespace {

constexpr double kMaxLengthPenalty = 10;

}  // namespace

Status check_beam_options(const BeamOptions& o, const text::Tokenizer& tokenizer,
                          std::int64_t vocab_size) {
  const std::int64_t widest =
      std::min<std::int64_t>(vocab_size, kMaxLogprobs - std::ssize(tokenizer.end_tokens()));
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

BeamRanking::BeamRanking(const BeamOptions& options, const text::Tokenizer& tokenizer,
                         std::int64_t vocab_size, std::int64_t room)
    : options_(options),
      tokenizer_(tokenizer),
      width_(static_cast<std::size_t>(options.beam_width)),
      room_(room) {
  // Of the tokens of a beam, at most so many are end tokens: these candidates are enough.
  sampling_.temperature = 0;
  sampling_.num_logprobs = static_cast<int>(
      std::min(vocab_size, options.beam_width + std::ssize(tokenizer.end_tokens())));
}

bool BeamRanking::is_end(std::int32_t token) const {
  return !options_.ignore_end && std::ranges::binary_search(tokenizer_.end_tokens(), token);
}

double BeamRanking::score_of(double logprob) const {
  return logprob / std::pow(static_cast<double>(num_tokens_), options_.length_penalty);
}

void BeamRanking::set_candidates(std::size_t beam, std::span<const TokenLogprob> top) {
  // A sequence that was preempted is computed again.
  if (std::exchange(beams_[beam].has_candidates, true)) return;
  for (const auto& [token, logprob] : top)
    if (!std::isinf(logprob))
      candidates_.push_back(
          {beams_[beam].logprob + static_cast<double>(logprob), token, beam, logprob});
}

bool BeamRanking::is_complete() const { return std::ranges::all_of(beams_, &Beam::has_candidates); }

bool BeamRanking::advance() {
  std::ranges::sort(candidates_, [](const Candidate& a, const Candidate& b) {
    return std::tie(b.logprob, a.token, a.beam) < std::tie(a.logprob, b.token, b.beam);
  });
  ++num_tokens_;
  select();
  candidates_.clear();
  if (num_tokens_ == options_.max_new_tokens || num_tokens_ > room_) {
    for (const Beam& beam : beams_) finish(beam, Finish::length);
    return true;
  }
  return beams_.empty() || is_decided();
}

void BeamRanking::select() {
  std::vector<Beam> next;
  parents_.clear();
  last_tokens_.clear();
  for (std::size_t rank = 0; rank < candidates_.size(); ++rank) {
    const Candidate& candidate = candidates_[rank];
    if (next.size() == width_) break;
    if (is_end(candidate.token) && rank >= width_) continue;
    const Beam& parent = beams_[candidate.beam];
    Beam beam{parent.tokens, parent.logprobs, candidate.logprob};
    beam.tokens.push_back(candidate.token);
    beam.logprobs.push_back(candidate.token_logprob);
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

void BeamRanking::finish(const Beam& beam, Finish reason) {
  const double score = score_of(beam.logprob);
  const auto place =
      std::ranges::upper_bound(finished_, score, std::greater<>(), &Completion::score);
  finished_.insert(place, {.tokens = beam.tokens,
                           .text = {},
                           .logprob = beam.logprob,
                           .score = score,
                           .finish = reason,
                           .logprobs = beam.logprobs});
  if (finished_.size() > width_) finished_.pop_back();
}

bool BeamRanking::is_decided() const {
  return finished_.size() == width_ && score_of(beams_[0].logprob) <= finished_.back().score;
}

Result<std::vector<Completion>> BeamRanking::take() {
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

}  // namespace headrace::engine
