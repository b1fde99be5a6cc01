// Engine: draws the tokens of a step, on the device where it can.
#include <algorithm>

#include "engine/engine.h"

namespace headrace::engine {

Status Engine::draw_all() {
  draws_.clear();
  std::int64_t row = 0;
  for (const Chunk& chunk : scheduler_.chunks()) {
    if (!chunk.is_last) continue;
    const Owner* const found = owners_.find(chunk.id);
    if (found == nullptr) {  // it has ended with the token that was computed
      ++row;
      continue;
    }
    const Owner owner = *found;
    // Forks share the logits after the prompt.
    if (owner.sample->idx == 0 && owner.sample->num_tokens == 0 && !owner.request->beams) {
      for (ActiveSample& sample : owner.request->samples)
        if (sample.sequence == 0 && fork(chunk.id, {owner.request, &sample}))
          draws_.push_back({{owner.request, &sample}, row});
    }
    draws_.push_back({owner, row++});
  }
  read_row_ = -1;
  find_masks();
  if (!options_.on_logits) {
    list_row_draws();
    Result<bool> is_later = draw_rows();
    if (!is_later.ok()) return std::move(is_later.failure());
    if (is_later.value()) return std::nullopt;
  }
  for (const Draw& next : draws_) HEADRACE_TRY(draw(next));
  advance_beams();
  return std::nullopt;
}

bool Engine::fork(std::int64_t parent, Owner owner) {
  if (owner.sample->has_finished) return false;
  Result<std::int64_t> forked = scheduler_.fork(parent);
  if (!forked.ok()) {
    finish(owner, {}, FinishReason::error, forked.failure().message);
    return false;
  }
  owner.sample->sequence = forked.value();
  owners_.set(forked.value(), owner);
  return scheduler_.state(forked.value()) == SequenceState::running;
}

SamplingInput Engine::input_of(const Draw& draw) const {
  const Scheduler::Tokens tokens = scheduler_.tokens(draw.owner.sample->sequence);
  return {.prompt = tokens.prompt,
          .output = tokens.output,
          .mask = draw.mask,
          .sequence_id = draw.owner.request->request.sequence_id,
          .position = tokens.length()};
}

// A sample whose grammar allows no token ends alone.
void Engine::find_masks() {
  masks_.resize(std::max(masks_.size(), draws_.size()));
  for (std::size_t i = 0; i < draws_.size(); ++i) {
    Draw& draw = draws_[i];
    std::optional<text::Matcher>& matcher = draw.owner.sample->matcher;
    if (!matcher) continue;
    if (Status bad = matcher->allowed(masks_[i]))
      finish(draw.owner, {}, FinishReason::error, bad->message);
    else
      draw.mask = masks_[i];
  }
  std::erase_if(draws_, [](const Draw& draw) { return draw.owner.sample->has_finished; });
}

void Engine::list_row_draws() {
  row_draws_.resize(draws_.size());
  std::size_t count = 0;
  for (Draw& draw : draws_) {
    if (draw.owner.request->beams) continue;
    draw.row_draw = static_cast<std::int64_t>(count);
    RowDraw& next = row_draws_[count++];
    next.row = draw.row;
    next.options = &draw.owner.sample->options;
    next.input = input_of(draw);
    next.token.reset();
    next.logprob = 0;
    next.top_logprobs.clear();
    next.failure.reset();
  }
  row_draws_.resize(count);
}

// True: their tokens are taken in the next step.
Result<bool> Engine::draw_rows() {
  if (host_sampler_) {
    const std::int64_t vocab_size = model_.decoder->config.vocab_size;
    if (Status failed = host_sampler_->draw(logits_.as<const float>(), vocab_size, row_draws_))
      return std::move(*failed);
    return false;
  }
  Result<bool> is_later = draw_later();
  if (!is_later.ok() || is_later.value()) return is_later;
  if (Status failed =
          device_sampler_->draw(runner_->logits_on_device(), row_draws_, runner_->stream()))
    return std::move(*failed);
  return false;
}

Result<bool> Engine::draw_later() {
  if (draws_.empty() || row_draws_.size() < draws_.size()) return false;
  Result<bool> begun =
      device_sampler_->begin(runner_->logits_on_device(), row_draws_, runner_->stream());
  if (!begun.ok() || !begun.value()) return begun;
  for (std::size_t i = 0; i < draws_.size(); ++i) {
    const Owner owner = draws_[i].owner;
    draws_[i].is_appended = !ends_with_next(owner, row_draws_[i].input.position);
    if (draws_[i].is_appended)
      scheduler_.append(owner.sample->sequence, -1 - static_cast<std::int32_t>(i));
  }
  drawn_later_.swap(draws_);
  return true;
}

Status Engine::take_drawn() {
  if (drawn_later_.empty()) return std::nullopt;
  if (Status failed = device_sampler_->end(row_draws_)) {
    failed->code = ErrorCode::device_error;  // the tokens are lost, so the engine ends
    return failed;
  }
  drawn_tokens_.clear();
  for (const RowDraw& drawn : row_draws_) drawn_tokens_.push_back(drawn.token.value_or(0));
  model_.tokenizer.prefetch(drawn_tokens_);
  for (std::size_t i = 0; i < drawn_later_.size(); ++i) {
    const Draw& draw = drawn_later_[i];
    const RowDraw& drawn = row_draws_[i];
    if (draw.owner.sample->has_finished) continue;
    if (draw.is_appended) scheduler_.replace_last(draw.owner.sample->sequence, drawn_tokens_[i]);
    take(draw, drawn);
  }
  drawn_later_.clear();
  return std::nullopt;
}

// A token of the device, or the failure to draw one.
void Engine::take(const Draw& draw, const RowDraw& drawn) {
  if (drawn.failure) return finish(draw.owner, {}, FinishReason::error, drawn.failure->message);
  accept(
      draw.owner,
      {.token = drawn.token.value(), .logprob = drawn.logprob, .top_logprobs = drawn.top_logprobs},
      draw.is_appended);
}

Result<std::span<const float>> Engine::logits_of(std::int64_t row) {
  const auto vocab_size = static_cast<std::size_t>(model_.decoder->config.vocab_size);
  const std::size_t first = static_cast<std::size_t>(row) * vocab_size;
  if (!device_sampler_) return std::span(logits_.as<const float>() + first, vocab_size);
  if (read_row_ != row)
    if (Status bad = runner_->device().download(runner_->logits_on_device() + first, logits_.data(),
                                                vocab_size * sizeof(float), runner_->stream()))
      return std::move(*bad);
  read_row_ = row;
  return std::span(logits_.as<const float>(), vocab_size);
}

// An error is that of the device.
Status Engine::draw(const Draw& draw) {
  const Owner owner = draw.owner;
  ActiveSample& sample = *owner.sample;
  if (sample.has_finished) return std::nullopt;  // with another beam of its search
  if (draw.row_draw >= 0) {
    const RowDraw& drawn = row_draws_[static_cast<std::size_t>(draw.row_draw)];
    if (drawn.token || drawn.failure) {
      take(draw, drawn);
      return std::nullopt;
    }
  }
  Result<std::span<const float>> logits = logits_of(draw.row);
  if (!logits.ok()) return std::move(logits.failure());
  if (options_.on_logits)
    if (Status bad = options_.on_logits(owner.request->id, sample.idx, logits.value())) {
      fail(owner, bad->message);
      return std::nullopt;
    }
  if (owner.request->beams) {
    if (Status bad = rank(owner, logits.value())) fail(owner, bad->message);
    return std::nullopt;
  }
  SamplingInput input = input_of(draw);
  input.logits = logits.value();
  Result<Sample> drawn = sampler_.sample(input, sample.options);
  if (drawn.ok())
    accept(owner, drawn.value());
  else
    finish(owner, {}, FinishReason::error, drawn.failure().message);
  return std::nullopt;
}

}  // namespace headrace::engine
