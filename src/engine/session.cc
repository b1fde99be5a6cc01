#include "engine/session.h"

#include <algorithm>
#include <cstring>

#include "base/math.h"

namespace headrace::engine {
Result<Session> Session::make(const LanguageModel& model, const SessionOptions& options) {
  const model::Decoder& decoder = *model.decoder;
  const model::Config& c = decoder.config;
  const std::int64_t max_tokens = options.max_tokens == 0 ? c.context_length : options.max_tokens;
  if (max_tokens < 1 || max_tokens > c.context_length)
    return invalid_argument(
        "max_tokens={}: must be 1 to {}, the model's context_length; pass 0 for all of it",
        max_tokens, c.context_length);
  if (options.batch_tokens < 0 || options.batch_tokens > kMaxBatchTokens)
    return invalid_argument("batch_tokens={}: must be 1 to {}; pass 0 for the default",
                            options.batch_tokens, kMaxBatchTokens);
  const std::int64_t by_device = is_on_gpu(model) ? kGpuSessionTokens : kCpuBatchTokens;
  const std::int64_t batch_tokens =
      std::min(options.batch_tokens == 0 ? by_device : options.batch_tokens, max_tokens);
  const std::int64_t own_pages =
      ceil_div(max_tokens, std::clamp<std::int64_t>(options.page_size, 1, max_tokens));
  if (options.num_pages != 0 && options.num_pages < own_pages)
    return invalid_argument(
        "num_pages={}: must be at least {}, the pages of max_tokens={} tokens; pass 0 for as many",
        options.num_pages, own_pages, max_tokens);
  Result<ModelRunner> runner =
      ModelRunner::make(model, {.max_batch_tokens = batch_tokens,
                                .page_size = options.page_size,
                                .num_pages = options.num_pages == 0 ? own_pages : options.num_pages,
                                .cache_dtype = options.cache_dtype});
  if (!runner.ok()) return std::move(runner.failure());
  Session session(std::move(runner.value()));
  session.max_tokens_ = max_tokens;
  session.batch_tokens_ = batch_tokens;
  Result<KvCache::Added> added = session.runner_.cache().add({}, 0);
  if (!added.ok()) return std::move(added.failure());
  session.sequence_ = added.value().sequence;
  session.logits_ =
      model.device->allocate_host(static_cast<std::size_t>(c.vocab_size) * sizeof(float));
  if (session.logits_.data() == nullptr)
    return Failure{
        ErrorCode::out_of_memory,
        "no memory for the logits of one token; close other programs or use a smaller model"};
  return session;
}

// Checks the count first: with a wrong count no token may be read.
Status Session::check(std::span<const std::int32_t> tokens) const {
  const std::size_t have = tokens_.size(), room = static_cast<std::size_t>(max_tokens_) - have;
  if (tokens.size() > room)
    return invalid_argument(
        "num_tokens={}: the session holds {} of max_tokens={} tokens, so at most {} fit; shorten "
        "the text or create a session with a larger max_tokens",
        tokens.size(), have, max_tokens_, room);
  const std::int64_t vocab_size = decoder().config.vocab_size;
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < 0 || tokens[i] >= vocab_size)
      return invalid_argument(
          "tokens[{}]={}: must be 0 to {}; pass tokens of this model's vocabulary", i, tokens[i],
          vocab_size - 1);
  return std::nullopt;
}

Status Session::append(std::span<const std::int32_t> tokens, float* logits) {
  if (tokens.empty()) return std::nullopt;
  HEADRACE_TRY(check(tokens));
  if (auto failure = append_all(tokens, logits)) {
    HEADRACE_TRY(runner_.cache().truncate(sequence_, static_cast<std::int64_t>(tokens_.size())));
    has_logits_ = false;
    return failure;
  }
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  has_logits_ = true;
  return std::nullopt;
}

Status Session::append_all(std::span<const std::int32_t> tokens, float* logits) {
  const auto vocab_size = static_cast<std::size_t>(decoder().config.vocab_size);
  const auto batch = static_cast<std::size_t>(batch_tokens_);
  // All slots first: if pages are missing, nothing is computed.
  HEADRACE_TRY(
      runner_.cache().reserve(sequence_, static_cast<std::int64_t>(tokens.size()), nullptr));
  for (std::size_t begin = 0; begin < tokens.size(); begin += batch) {
    const auto part = tokens.subspan(begin, std::min(batch, tokens.size() - begin));
    const bool is_last = begin + part.size() == tokens.size();
    const bool wants_all = logits != nullptr;
    const ModelRunner::Part step{
        .sequence = sequence_,
        .tokens = part,
        .num_logits = wants_all ? static_cast<std::int64_t>(part.size()) : is_last};
    HEADRACE_TRY(
        runner_.step({&step, 1}, wants_all ? logits + begin * vocab_size : logits_.as<float>()));
  }
  if (logits != nullptr)
    std::memcpy(logits_.data(), logits + (tokens.size() - 1) * vocab_size,
                vocab_size * sizeof(float));
  return std::nullopt;
}

Status Session::truncate(std::int64_t length) {
  const auto have = static_cast<std::int64_t>(tokens_.size());
  if (length < 0 || length > have)
    return invalid_argument("length={}: the session holds {} tokens; pass 0 to {}", length, have,
                            have);
  if (length == have) return std::nullopt;
  HEADRACE_TRY(runner_.cache().truncate(sequence_, length));
  tokens_.resize(static_cast<std::size_t>(length));
  has_logits_ = false;
  return std::nullopt;
}

}  // namespace headrace::engine
