#include "engine/generate.h"

#include <algorithm>
#include <numeric>

#include "engine/branches.h"

namespace headrace::engine {
namespace {

using OnText = std::function<Result<bool>(std::string_view)>;

// Detokenizes incrementally, matches stop strings and emits text.
class Writer {
 public:
  Writer(const text::Tokenizer& tokenizer, text::StopMatcher stops, OnText on_text)
      : decoder_(tokenizer), stops_(std::move(stops)), on_text_(std::move(on_text)) {}

  // False: generation ends, finish() gives the reason.
  Result<bool> push(std::int32_t token) {
    Result<std::string> text = decoder_.push(token);
    if (!text.ok()) return std::move(text.failure());
    return write(stops_.push(text.value()));
  }
  // Emits pending text.
  Status flush() {
    Result<bool> may_continue = write(stops_.push(decoder_.flush()));
    if (may_continue.ok() && may_continue.value() && on_text_)
      may_continue = on_text_(stops_.finish());
    return may_continue.ok() ? Status() : std::move(may_continue.failure());
  }
  Finish finish() const { return is_stopped_ ? Finish::stop : Finish::cancelled; }

 private:
  Result<bool> write(const text::StopMatcher::Output& output) {
    is_stopped_ = output.stop_idx.has_value();
    Result<bool> may_continue = on_text_ ? on_text_(output.text) : Result<bool>(true);
    if (is_stopped_ && may_continue.ok()) return false;
    return may_continue;
  }

  text::StreamDecoder decoder_;
  text::StopMatcher stops_;
  OnText on_text_;
  bool is_stopped_ = false;
};

// What is generated after a prompt, until a finish reason applies.
class Output {
 public:
  static Result<Output> make(const Session& session, const text::Tokenizer& tokenizer,
                             const GenerationOptions& options, OnText on_text) {
    Result<text::StopMatcher> stops = text::StopMatcher::make(options.stop);
    if (!stops.ok()) return std::move(stops.failure());
    if (auto bad = check_grammar(options.grammar.get(), tokenizer, options.ignore_end))
      return std::move(*bad);
    return Output(session, tokenizer, options,
                  Writer(tokenizer, std::move(stops.value()), std::move(on_text)));
  }

  // The tokens that may be next; empty: all.
  Result<std::span<const std::uint64_t>> mask() {
    if (matcher_)
      if (auto bad = matcher_->allowed(mask_)) return std::move(*bad);
    return std::span<const std::uint64_t>(mask_);
  }

  // Takes the next token. True: it is to be appended to the sequence.
  Result<bool> push(std::int32_t token) {
    tokens_.push_back(token);
    const auto num_tokens = static_cast<std::int64_t>(tokens_.size());
    const bool is_end = std::binary_search(ends_.begin(), ends_.end(), token);
    if (is_end && !options_.ignore_end) return end(Finish::end);
    Result<bool> may_continue = writer_.push(token);
    if (!may_continue.ok()) return may_continue;
    finish_ = writer_.finish();
    if (!may_continue.value()) return false;
    if (matcher_) {
      if (auto bad = matcher_->accept(token)) return std::move(*bad);
      if (matcher_->is_finished()) return end(Finish::end);
    }
    const bool is_full = num_tokens == options_.max_new_tokens || num_tokens > room_;
    return is_full ? end(Finish::length) : Result<bool>(true);
  }

  const std::vector<std::int32_t>& tokens() const { return tokens_; }
  Finish finish() const { return finish_; }

 private:
  Output(const Session& session, const text::Tokenizer& tokenizer, const GenerationOptions& options,
         Writer writer)
      : ends_(tokenizer.end_tokens()),
        options_(options),
        room_(session.max_tokens() - static_cast<std::int64_t>(session.tokens().size())),
        writer_(std::move(writer)) {
    if (options.grammar) matcher_.emplace(options.grammar);
  }
  Result<bool> end(Finish finish) {
    finish_ = finish;
    if (auto bad = writer_.flush()) return std::move(*bad);
    return false;
  }

  const std::vector<std::int32_t>& ends_;
  const GenerationOptions& options_;
  std::int64_t room_;  // tokens that still fit the sequence
  Writer writer_;
  std::optional<text::Matcher> matcher_;
  std::vector<std::uint64_t> mask_;
  std::vector<std::int32_t> tokens_;
  Finish finish_ = Finish::end;
};

}  // namespace

Result<Sample> sample_next(const Session& session, const SamplingOptions& options,
                           std::uint64_t sequence_id, std::int64_t num_prompt_tokens,
                           Sampler& sampler, std::span<const std::uint64_t> mask) {
  if (session.logits() == nullptr)
    return invalid_argument("session: there are no logits; append tokens first");
  const std::span<const std::int32_t> tokens = session.tokens();
  const auto num_tokens = static_cast<std::int64_t>(tokens.size());
  if (num_prompt_tokens < 0 || num_prompt_tokens > num_tokens)
    return invalid_argument("num_prompt_tokens={}: the session holds {} tokens; pass 0 to {}",
                            num_prompt_tokens, num_tokens, num_tokens);
  const std::int64_t vocab_size = session.decoder().config.vocab_size;
  if (auto bad = check_sampling_options(options, vocab_size)) return std::move(*bad);
  const auto num_prompt = static_cast<std::size_t>(num_prompt_tokens);
  return sampler.sample({.logits = {session.logits(), static_cast<std::size_t>(vocab_size)},
                         .prompt = tokens.first(num_prompt),
                         .output = tokens.subspan(num_prompt),
                         .mask = mask,
                         .sequence_id = sequence_id,
                         .position = num_tokens},
                        options);
}

Result<Generation> generate(Session& session, const text::Tokenizer& tokenizer,
                            const GenerationOptions& options, Sampler& sampler) {
  const auto num_prompt_tokens = static_cast<std::int64_t>(session.tokens().size());
  Result<Output> made = Output::make(session, tokenizer, options, options.on_text);
  if (!made.ok()) return std::move(made.failure());
  Output& output = made.value();
  for (;;) {
    Result<std::span<const std::uint64_t>> mask = output.mask();
    if (!mask.ok()) return std::move(mask.failure());
    Result<Sample> drawn = sample_next(session, options.sampling, options.sequence_id,
                                       num_prompt_tokens, sampler, mask.value());
    if (!drawn.ok()) return std::move(drawn.failure());
    const std::int32_t token = drawn.value().token;
    Result<bool> may_continue = output.push(token);
    if (!may_continue.ok()) return std::move(may_continue.failure());
    if (!may_continue.value()) break;
    if (auto bad = session.append({&token, 1}, nullptr)) return std::move(*bad);
  }
  return Generation{static_cast<std::int64_t>(output.tokens().size()), output.finish()};
}

namespace {

// Samples of one prompt. Those that continue are branches, in their order.
class Samples {
 public:
  Samples(Session& session, const GenerationOptions& options, Sampler& sampler, Branches branches)
      : session_(session),
        options_(options.sampling),
        seed_(options.sampling.seed),
        sequence_id_(options.sequence_id),
        sampler_(sampler),
        branches_(std::move(branches)) {
    options_.num_logprobs = 0;  // of the token
  }

  Status add_all(const text::Tokenizer& tokenizer, const GenerationOptions& options, std::int64_t n,
                 const OnSampleText& on_text) {
    completions_.resize(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) {
      std::string& all = completions_[static_cast<std::size_t>(i)].text;
      Result<Output> made = Output::make(
          session_, tokenizer, options, [&all, &on_text, i](std::string_view text) -> Result<bool> {
            all += text;
            return on_text ? on_text(i, text) : Result<bool>(true);
          });
      if (!made.ok()) return std::move(made.failure());
      outputs_.push_back(std::move(made.value()));
    }
    return std::nullopt;
  }

  Status run() {
    std::vector<std::size_t> running(outputs_.size()), branches(outputs_.size(), 0);
    std::iota(running.begin(), running.end(), std::size_t{0});
    while (!running.empty()) {
      std::vector<std::size_t> continued, parents;
      std::vector<std::int32_t> tokens;
      for (std::size_t i = 0; i < running.size(); ++i) {
        Result<bool> may_continue = draw(running[i], branches[i]);
        if (!may_continue.ok()) return std::move(may_continue.failure());
        if (!may_continue.value()) continue;
        continued.push_back(running[i]);
        parents.push_back(branches[i]);
        tokens.push_back(outputs_[running[i]].tokens().back());
      }
      running = std::move(continued);
      branches.resize(running.size());
      std::iota(branches.begin(), branches.end(), std::size_t{0});
      if (!running.empty()) HEADRACE_TRY(branches_.advance(parents, tokens));
    }
    return std::nullopt;
  }

  std::vector<Completion> take() {
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      completions_[i].tokens = outputs_[i].tokens();
      completions_[i].score = completions_[i].logprob;
      completions_[i].finish = outputs_[i].finish();
    }
    return std::move(completions_);
  }

 private:
  Result<bool> draw(std::size_t i, std::size_t branch) {
    const std::vector<std::int32_t>& output = outputs_[i].tokens();
    options_.seed = seed_ + i;
    Result<std::span<const std::uint64_t>> mask = outputs_[i].mask();
    if (!mask.ok()) return std::move(mask.failure());
    Result<Sample> drawn = sampler_.sample(
        {.logits = branches_.logits(branch),
         .prompt = session_.tokens(),
         .output = output,
         .mask = mask.value(),
         .sequence_id = sequence_id_,
         .position = static_cast<std::int64_t>(session_.tokens().size() + output.size())},
        options_);
    if (!drawn.ok()) return std::move(drawn.failure());
    completions_[i].logprob += static_cast<double>(drawn.value().logprob);
    return outputs_[i].push(drawn.value().token);
  }

  Session& session_;
  SamplingOptions options_;  // of the current sample
  std::uint64_t seed_, sequence_id_;
  Sampler& sampler_;
  Branches branches_;
  std::vector<Output> outputs_;
  std::vector<Completion> completions_;
};

}  // namespace

Result<std::vector<Completion>> generate_n(Session& session, const text::Tokenizer& tokenizer,
                                           const GenerationOptions& options, std::int64_t n,
                                           const OnSampleText& on_text, Sampler& sampler) {
  if (n > 1 && options.sampling.temperature == 0)
    return invalid_argument(
        "n={} with temperature=0: greedy samples are equal; pass a temperature above 0, or n=1", n);
  if (auto bad = check_sampling_options(options.sampling, session.decoder().config.vocab_size))
    return std::move(*bad);
  Result<Branches> branches = Branches::make(session, "n", n, options.max_new_tokens);
  if (!branches.ok()) return std::move(branches.failure());
  Samples samples(session, options, sampler, std::move(branches.value()));
  if (auto bad = samples.add_all(tokenizer, options, n, on_text)) return std::move(*bad);
  if (auto bad = samples.run()) return std::move(*bad);
  return samples.take();
}

}  // namespace headrace::engine
