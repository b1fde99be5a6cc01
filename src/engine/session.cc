#include "engine/session.h"

#include <algorithm>
#include <cstring>

#include "base/math.h"
#include "engine/branches.h"

namespace headrace::engine {
namespace {

Status check_sparq(const LanguageModel& model, const SessionOptions& options) {
  const auto [num_components, num_keys] = options.sparq;
  if (num_components == 0 && num_keys == 0) return std::nullopt;
  const std::int64_t head_dim = model.decoder->config.head_dim;
  if (num_components < 1 || num_components > head_dim)
    return invalid_argument(
        "sparq_components={}: must be 1 to {}, the head_dim of the model, with sparq_keys={}; pass "
        "such a number, or 0 for both",
        num_components, head_dim, num_keys);
  if (num_keys < 1)
    return invalid_argument(
        "sparq_keys={}: must be 1 or more with sparq_components={}; pass such a number, or 0 for "
        "both",
        num_keys, num_components);
  if (!is_on_gpu(model)) return std::nullopt;
  return Failure{ErrorCode::unsupported,
                 format_text("sparq_keys={}: the model is on a GPU, where sessions have dense "
                             "attention only; load it on the CPU, or pass 0 for both",
                             num_keys)};
}

}  // namespace

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
  if (auto bad = check_sparq(model, options)) return std::move(*bad);
  const std::int64_t page_size =
      whole_page_size(options.page_size, options.k_dtype, options.v_dtype);
  const std::int64_t own_pages =
      ceil_div(max_tokens, std::clamp<std::int64_t>(page_size, 1, max_tokens));
  if (options.num_pages != 0 && options.num_pages < own_pages)
    return invalid_argument(
        "num_pages={}: must be at least {}, the pages of max_tokens={} tokens; pass 0 for as many",
        options.num_pages, own_pages, max_tokens);
  Result<ModelRunner> runner =
      ModelRunner::make(model, {.max_batch_tokens = batch_tokens,
                                .page_size = page_size,
                                .num_pages = options.num_pages == 0 ? own_pages : options.num_pages,
                                .cache_dtype = options.cache_dtype,
                                .k_dtype = options.k_dtype,
                                .v_dtype = options.v_dtype,
                                .max_sequences = kMaxBranchesWithCodes,
                                .sparq = options.sparq});
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
  return decoder().check_tokens("tokens", tokens);
}

Status Session::append(std::span<const std::int32_t> tokens, float* logits) {
  if (tokens.empty()) return std::nullopt;
  HEADRACE_TRY(check(tokens));
  const std::size_t have = tokens_.size();
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  was_alone_.resize(tokens_.size(), tokens.size() == 1);
  if (auto failure = append_all(tokens.size(), logits)) {
    forget_behind(have);
    HEADRACE_TRY(truncate_cache());
    has_logits_ = false;
    return failure;
  }
  has_logits_ = true;
  return std::nullopt;
}

// Computes the tokens that the cache lacks: the last num_new, whose logits may be wanted, and
// others behind a truncation.
Status Session::append_all(std::size_t num_new, float* logits) {
  const auto vocab_size = static_cast<std::size_t>(decoder().config.vocab_size);
  const auto batch = static_cast<std::size_t>(batch_tokens_);
  const std::size_t first_new = tokens_.size() - num_new;
  const auto cached = static_cast<std::size_t>(runner_.cache().info(sequence_).value().length);
  HEADRACE_TRY(reserve(static_cast<std::int64_t>(tokens_.size() - cached)));
  for (std::size_t begin = cached, end = begin; begin < tokens_.size(); begin = end) {
    // Tokens of one kind: those that were appended alone are computed alone anew too.
    const bool is_alone = was_alone_[begin];
    const std::size_t most =
        std::min(begin + (is_alone && runner_.has_sparq() ? 1 : batch), tokens_.size());
    for (end = begin + 1; end < most && was_alone_[end] == is_alone;) ++end;
    const bool is_last = end == tokens_.size();
    const std::size_t num_wanted = end - std::clamp(first_new, begin, end);
    const ModelRunner::Part step{
        .sequence = sequence_,
        .tokens = std::span(tokens_).subspan(begin, end - begin),
        .num_logits = logits != nullptr ? static_cast<std::int64_t>(num_wanted) : is_last,
        .num_generated = is_alone ? static_cast<std::int64_t>(end - begin) : 0};
    if (logits == nullptr || num_wanted == 0) {
      HEADRACE_TRY(
          runner_.step({&step, 1}, logits_.as<float>(), ModelRunner::HostMemory::page_locked));
      continue;
    }
    HEADRACE_TRY(runner_.step({&step, 1}, logits + (end - num_wanted - first_new) * vocab_size));
  }
  if (logits != nullptr)
    std::memcpy(logits_.data(), logits + (num_new - 1) * vocab_size, vocab_size * sizeof(float));
  return std::nullopt;
}

// All slots first: if pages are missing, nothing is computed. Recent pages are those of a step.
Status Session::reserve(std::int64_t num_tokens) {
  KvCache& cache = runner_.cache();
  if (!cache.has_codes()) return cache.reserve(sequence_, num_tokens, runner_.stream());
  const KvSequenceInfo info = cache.info(sequence_).value();
  const std::int64_t num_pages =
      ceil_div(info.length + num_tokens, cache.options().page_size) - info.num_pages;
  if (num_pages <= cache.allocator().num_free()) return std::nullopt;
  return Failure{ErrorCode::out_of_memory,
                 format_text("num_tokens={}: {} pages are needed and {} are free; create the "
                             "session with more num_pages",
                             num_tokens, num_pages, cache.allocator().num_free())};
}

void Session::forget_behind(std::size_t length) {
  tokens_.resize(length);
  was_alone_.resize(length);
}

// The cache keeps no more than tokens_. Of codes, the tokens of a group that is no longer there
// unquantised are computed again by the next append.
Status Session::truncate_cache() {
  KvCache& cache = runner_.cache();
  const auto length = static_cast<std::int64_t>(tokens_.size());
  const std::int64_t cached = cache.info(sequence_).value().length;
  if (cached < length) return std::nullopt;
  const std::int64_t group = cache.recent_group();
  const bool is_gone = cache.has_codes() && length / group != cached / group;
  return cache.truncate(sequence_, is_gone ? length / group * group : length);
}

Status Session::truncate(std::int64_t length) {
  const auto have = static_cast<std::int64_t>(tokens_.size());
  if (length < 0 || length > have)
    return invalid_argument("length={}: the session holds {} tokens; pass 0 to {}", length, have,
                            have);
  if (length == have) return std::nullopt;
  forget_behind(static_cast<std::size_t>(length));
  HEADRACE_TRY(truncate_cache());
  has_logits_ = false;
  return std::nullopt;
}

}  // namespace headrace::engine
