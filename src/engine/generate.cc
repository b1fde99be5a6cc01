#include "engine/generate.h"

#include <algorithm>

namespace headrace::engine {
namespace {

// Detokenizes incrementally, matches stop strings and emits text.
class Writer {
 public:
  Writer(const text::Tokenizer& tokenizer, text::StopMatcher stops,
         const std::function<Result<bool>(std::string_view)>& on_text)
      : decoder_(tokenizer), stops_(std::move(stops)), on_text_(on_text) {}

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
  const std::function<Result<bool>(std::string_view)>& on_text_;
  bool is_stopped_ = false;
};

}  // namespace

Result<Sample> sample_next(const Session& session, const SamplingOptions& options,
                           std::uint64_t sequence_id, std::int64_t num_prompt_tokens,
                           Sampler& sampler) {
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
                         .sequence_id = sequence_id,
                         .position = num_tokens},
                        options);
}

Result<Generation> generate(Session& session, const text::Tokenizer& tokenizer,
                            const GenerationOptions& options, Sampler& sampler) {
  const auto num_prompt_tokens = static_cast<std::int64_t>(session.tokens().size());
  const std::vector<std::int32_t>& ends = tokenizer.end_tokens();
  Result<text::StopMatcher> stops = text::StopMatcher::make(options.stop);
  if (!stops.ok()) return std::move(stops.failure());
  Writer writer(tokenizer, std::move(stops.value()), options.on_text);
  Generation result;
  for (;;) {
    Result<Sample> drawn =
        sample_next(session, options.sampling, options.sequence_id, num_prompt_tokens, sampler);
    if (!drawn.ok()) return std::move(drawn.failure());
    const std::int32_t token = drawn.value().token;
    ++result.num_tokens;
    if (!options.ignore_end && std::binary_search(ends.begin(), ends.end(), token)) {
      result.finish = Finish::end;
      break;
    }
    Result<bool> may_continue = writer.push(token);
    if (!may_continue.ok()) return std::move(may_continue.failure());
    if (!may_continue.value()) {
      result.finish = writer.finish();
      return result;
    }
    const auto length = static_cast<std::int64_t>(session.tokens().size());
    if (result.num_tokens == options.max_new_tokens || length == session.max_tokens()) {
      result.finish = Finish::length;
      break;
    }
    if (auto bad = session.append({&token, 1}, nullptr)) return std::move(*bad);
  }
  if (auto bad = writer.flush()) return std::move(*bad);
  return result;
}

}  // namespace headrace::engine
