#include "engine/session.h"

#include <algorithm>
#include <cstring>

#include "kv_cache/contiguous_cache.h"

namespace headrace::engine {
namespace {

constexpr std::int64_t kMaxBatchTokens = 1 << 16;

}  // namespace

Result<Session> Session::make(const model::Decoder& decoder, const SessionOptions& options) {
  const model::Config& c = decoder.config;
  const std::int64_t max_tokens = options.max_tokens == 0 ? c.context_length : options.max_tokens;
  if (max_tokens < 1 || max_tokens > c.context_length)
    return invalid_argument(
        "max_tokens={}: must be 1 to {}, the model's context_length; pass 0 for all of it",
        max_tokens, c.context_length);
  if (options.batch_tokens < 1 || options.batch_tokens > kMaxBatchTokens)
    return invalid_argument("batch_tokens={}: must be 1 to {}; pass 0 for the default",
                            options.batch_tokens, kMaxBatchTokens);
  const std::int64_t batch_tokens = std::min(options.batch_tokens, max_tokens);
  Session session;
  session.decoder_ = &decoder;
  session.max_tokens_ = max_tokens;
  auto cache = make_contiguous_cache(decoder.kv_shape(options.cache_dtype), max_tokens);
  if (!cache.ok()) return std::move(cache.failure());
  session.cache_ = std::move(cache.value());
  auto scratch =
      model::DecoderScratch::make(decoder, batch_tokens, max_tokens, options.cache_dtype);
  if (!scratch.ok()) return std::move(scratch.failure());
  session.scratch_ = std::move(scratch.value());
  session.logits_ = Aligned<float>(static_cast<std::size_t>(c.vocab_size));
  if (session.logits_.get() == nullptr)
    return Failure{ErrorCode::out_of_memory, "no memory for the logits of one token"};
  return session;
}

// The count first: of a wrong one not a token may be read.
Status Session::check(std::span<const std::int32_t> tokens) const {
  const std::size_t have = tokens_.size(), room = static_cast<std::size_t>(max_tokens_) - have;
  if (tokens.size() > room)
    return invalid_argument(
        "num_tokens={}: the session holds {} of max_tokens={} tokens, so at most {} fit; shorten "
        "the text or create a session with a larger max_tokens",
        tokens.size(), have, max_tokens_, room);
  const std::int64_t vocab_size = decoder_->config.vocab_size;
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < 0 || tokens[i] >= vocab_size)
      return invalid_argument("tokens[{}]={}: must be 0 to {}", i, tokens[i], vocab_size - 1);
  return std::nullopt;
}

Status Session::append(std::span<const std::int32_t> tokens, float* logits) {
  if (tokens.empty()) return std::nullopt;
  HEADRACE_TRY(check(tokens));
  const std::int64_t before = cache_->length();
  auto bad = append_all(tokens, logits);
  if (bad) {
    cache_->set_length(before);
    has_logits_ = false;
    return bad;
  }
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  return std::nullopt;
}

Status Session::append_all(std::span<const std::int32_t> tokens, float* logits) {
  const model::Config& c = decoder_->config;
  const auto batch = static_cast<std::size_t>(scratch_.max_tokens);
  const auto vocab_size = static_cast<std::size_t>(c.vocab_size);
  for (std::size_t begin = 0; begin < tokens.size(); begin += batch) {
    const auto part = tokens.subspan(begin, std::min(batch, tokens.size() - begin));
    if (auto bad = forward(*decoder_, part, *cache_, scratch_)) return bad;
    const auto num_rows = static_cast<std::int64_t>(part.size());
    if (logits != nullptr)
      HEADRACE_TRY(logits_of(*decoder_, scratch_.normed.get(), num_rows,
                             logits + begin * vocab_size, scratch_));
    if (begin + part.size() < tokens.size()) continue;
    if (logits != nullptr)
      std::memcpy(logits_.get(), logits + (tokens.size() - 1) * vocab_size,
                  vocab_size * sizeof(float));
    else
      HEADRACE_TRY(logits_of(*decoder_, scratch_.normed.get() + (num_rows - 1) * c.hidden_size, 1,
                             logits_.get(), scratch_));
  }
  has_logits_ = true;
  return std::nullopt;
}

Status Session::truncate(std::int64_t length) {
  const auto have = static_cast<std::int64_t>(tokens_.size());
  if (length < 0 || length > have)
    return invalid_argument("length={}: the session holds {} tokens; pass 0 to {}", length, have,
                            have);
  if (length == have) return std::nullopt;
  tokens_.resize(static_cast<std::size_t>(length));
  cache_->set_length(length);
  has_logits_ = false;
  return std::nullopt;
}

}  // namespace headrace::engine
