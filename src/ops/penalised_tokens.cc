#include "ops/penalised_tokens.h"

#include <algorithm>
#include <utility>

namespace headrace {
namespace {

bool has_counts(const SamplingOptions& o) {
  return o.presence_penalty != 0 || o.frequency_penalty != 0;
}

Status check_history(std::span<const std::int32_t> tokens, const char* name,
                     std::size_t vocab_size) {
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < 0 || static_cast<std::size_t>(tokens[i]) >= vocab_size)
      return invalid_argument(
          "{}[{}]={} (of the last {}): must be 0 to {}; pass the history of this model", name, i,
          tokens[i], tokens.size(), vocab_size - 1);
  return {};
}

}  // namespace

bool has_penalties(const SamplingOptions& o) { return o.repetition_penalty != 1 || has_counts(o); }

bool changes_logits(const SamplingOptions& o) { return !o.logit_bias.empty() || has_penalties(o); }

void PenalisedTokens::reserve(std::size_t vocab_size) {
  if (counts_.size() >= vocab_size) return;
  repeated_.reserve(vocab_size);
  counted_.reserve(vocab_size);
  counts_.assign(vocab_size, 0);
}

Status PenalisedTokens::collect(const SamplingInput& input, const SamplingOptions& options,
                                std::size_t vocab_size) {
  repeated_.clear();
  counted_.clear();
  if (!has_penalties(options)) return {};
  reserve(vocab_size);
  const auto all = static_cast<std::int64_t>(input.prompt.size() + input.output.size());
  const auto window =
      static_cast<std::size_t>(std::min(options.repetition_window.value_or(all), all));
  const Tokens output = input.output.last(std::min(window, input.output.size()));
  const Tokens prompt = input.prompt.last(window - output.size());
  if (options.repetition_penalty != 1) HEADRACE_TRY(count(prompt, output, vocab_size, repeated_));
  if (!has_counts(options)) return {};
  if (options.order == SamplingOrder::llama_cpp) return count(prompt, output, vocab_size, counted_);
  return count({}, input.output, vocab_size, counted_);
}

Status PenalisedTokens::count(Tokens prompt, Tokens output, std::size_t vocab_size,
                              std::vector<TokenCount>& into) {
  HEADRACE_TRY(check_history(prompt, "prompt", vocab_size));
  HEADRACE_TRY(check_history(output, "output", vocab_size));
  for (const Tokens tokens : {prompt, output})
    for (const std::int32_t token : tokens)
      if (counts_[static_cast<std::size_t>(token)]++ == 0) into.push_back({token, 0});
  for (TokenCount& of : into)
    of.count = std::exchange(counts_[static_cast<std::size_t>(of.token)], 0);
  return {};
}

}  // namespace headrace
