// Engine: requests that ask for a beam search. Each beam is a sequence of the scheduler, all of
// them a gang.
#include <algorithm>
#include <utility>

#include "base/math.h"
#include "engine/engine.h"

namespace headrace::engine {
namespace {

BeamOptions beam_options(const Request& request) {
  return {.beam_width = request.beam_width,
          .length_penalty = request.length_penalty,
          .max_new_tokens = request.max_new_tokens,
          .ignore_end = request.ignore_end};
}

}  // namespace

Status Engine::check_beams(const Request& request) const {
  HEADRACE_TRY(check_beam_options(beam_options(request), model_.tokenizer,
                                  model_.decoder->config.vocab_size));
  const char* other = request.n != 1                                   ? "n"
                      : request.grammar                                ? "grammar"
                      : !request.stop.empty()                          ? "stop"
                      : !request.stop_tokens.empty()                   ? "stop_tokens"
                      : request.sampling.num_logprobs.value_or(0) != 0 ? "num_logprobs"
                                                                       : nullptr;
  if (other != nullptr)
    return invalid_argument(
        "beam_width={} with {}: a beam search has beam_width completions of any text; leave {} at "
        "its default",
        request.beam_width, other, other);
  if (request.beam_width > options_.max_num_seqs)
    return invalid_argument(
        "beam_width={}: must be at most max_num_seqs={} of the engine, which computes all beams "
        "together; pass less, or create an engine with more",
        request.beam_width, options_.max_num_seqs);
  const std::int64_t room = options_.max_tokens - std::ssize(request.prompt);
  const std::int64_t num_new =
      request.max_new_tokens == 0 ? room : std::min(room, request.max_new_tokens);
  const std::int64_t num_pages =
      request.beam_width * ceil_div(std::ssize(request.prompt) + num_new, options_.page_size);
  if (num_pages > options_.num_pages)
    return invalid_argument(
        "beam_width={}: the beams can need {} pages, and the engine has num_pages={}; pass less, "
        "or a smaller max_new_tokens",
        request.beam_width, num_pages, options_.num_pages);
  return std::nullopt;
}

void Engine::start_beams(ActiveRequest& active) {
  const Request& request = active.request;
  active.beams = std::make_unique<BeamRanking>(
      beam_options(request), model_.tokenizer, model_.decoder->config.vocab_size,
      options_.max_tokens - std::ssize(scheduler_.tokens(active.samples.front().sequence).prompt));
}

// A failure is that of the beam.
Status Engine::rank(Owner owner, std::span<const float> logits) {
  BeamRanking& beams = *owner.request->beams;
  Result<Sample> sample = sampler_.sample({.logits = logits}, beams.sampling());
  if (!sample.ok()) return std::move(sample.failure());
  beams.set_candidates(static_cast<std::size_t>(owner.sample->idx), sample.value().top_logprobs);
  ranked_.push_back(owner.request);
  return std::nullopt;
}

void Engine::advance_beams() {
  for (ActiveRequest* active : std::exchange(ranked_, {})) {
    if (active->num_open == 0 || !active->beams->is_complete()) continue;
    // After a preemption some are computed again.
    if (!std::ranges::all_of(active->samples, [&](const ActiveSample& sample) {
          return sample.sequence == 0 || scheduler_.is_computed(sample.sequence);
        }))
      continue;
    if (active->beams->advance())
      finish_beams(*active);
    else if (Status bad = continue_beams(*active))
      finish_all(*active, FinishReason::error, bad->message);
  }
}

// The first child of a beam takes its sequence over, the others fork it.
Status Engine::continue_beams(ActiveRequest& active) {
  const std::span<const std::size_t> parents = active.beams->parents();
  std::vector<std::int64_t> before;
  for (ActiveSample& sample : active.samples) before.push_back(std::exchange(sample.sequence, 0));
  for (std::size_t i = 0; i < before.size(); ++i)
    if (before[i] != 0 && std::ranges::find(parents, i) == parents.end()) release_beam(before[i]);
  Status failure;
  for (std::size_t i = 0; i < parents.size(); ++i) {
    std::int64_t& sequence = active.samples[i].sequence;
    if (std::ranges::find(parents, parents[i]) ==
        parents.begin() + static_cast<std::ptrdiff_t>(i)) {
      sequence = before[parents[i]];
    } else if (Result<std::int64_t> forked = scheduler_.fork(before[parents[i]]); forked.ok()) {
      sequence = forked.value();
    } else {
      failure = std::move(forked.failure());
      continue;
    }
    owners_.set(sequence, {&active, &active.samples[i]});
  }
  if (failure) return failure;
  for (std::size_t i = 0; i < parents.size(); ++i)
    scheduler_.append(active.samples[i].sequence, active.beams->tokens()[i]);
  return std::nullopt;
}

void Engine::release_beam(std::int64_t sequence) {
  owners_.erase(sequence);
  static_cast<void>(scheduler_.finish(sequence));  // fails for unknown ids alone
}

void Engine::finish_beams(ActiveRequest& active) {
  std::int64_t num_cached = 0;
  for (ActiveSample& sample : active.samples)
    if (const std::int64_t sequence = std::exchange(sample.sequence, 0); sequence != 0) {
      num_cached = scheduler_.tokens(sequence).num_cached;
      release_beam(sequence);
    }
  Result<std::vector<Completion>> found = active.beams->take();
  if (!found.ok()) return finish_all(active, FinishReason::error, found.failure().message);
  for (ActiveSample& sample : active.samples) {
    const auto i = static_cast<std::size_t>(sample.idx);
    if (i >= found.value().size()) {
      finish({&active, &sample}, {}, FinishReason::error,
             "the search has found fewer completions than beam_width; pass a smaller one");
      continue;
    }
    const Completion& completion = found.value()[i];
    Output gained;
    gained.num_cached_tokens = num_cached;
    gained.text = completion.text;
    for (std::size_t t = 0; t < completion.tokens.size(); ++t)
      gained.tokens.push_back({completion.tokens[t], completion.logprobs[t], {}});
    num_generated_tokens_ += std::ssize(completion.tokens);
    finish({&active, &sample}, std::move(gained),
           completion.finish == Finish::length ? FinishReason::length : FinishReason::stop);
  }
}

}  // namespace headrace::engine
