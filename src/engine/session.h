// One sequence: an executor, a KV cache, the cached tokens and the logits of the last one.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/language_model.h"
#include "kv_cache/contiguous_cache.h"

namespace headrace::engine {

struct SessionOptions {
  std::int64_t max_tokens = 0;      // context length; 0: the model's
  std::int64_t batch_tokens = 512;  // prompt tokens per step (chunked prefill)
  DType cache_dtype = DType::f16;
};

// The model must have weights and outlive the session.
class Session {
 public:
  static Result<Session> make(const LanguageModel& model, const SessionOptions& options);

  // Appends tokens and computes the logits of the last one; with `logits`
  // [tokens.size(), vocab_size], the logits of each of them. On an error nothing is appended.
  Status append(std::span<const std::int32_t> tokens, float* logits);
  // Keeps the first `length` tokens. Afterwards there are no logits.
  Status truncate(std::int64_t length);

  const model::Decoder& decoder() const { return *decoder_; }
  std::span<const std::int32_t> tokens() const { return tokens_; }
  std::int64_t max_tokens() const { return max_tokens_; }
  // Of the last token, [vocab_size]; null: none.
  const float* logits() const { return has_logits_ ? logits_.as<float>() : nullptr; }

 private:
  Session(const LanguageModel& model, ContiguousCache cache)
      : decoder_(&*model.decoder),
        executor_(make_executor(*model.device, model.mode)),
        cache_(std::move(cache)) {}
  Status check(std::span<const std::int32_t> tokens) const;
  Status append_all(std::span<const std::int32_t> tokens, float* logits);
  Status step(std::span<const std::int32_t> tokens, std::int64_t first, std::int64_t num_logits,
              float* logits);

  const model::Decoder* decoder_;
  std::unique_ptr<Executor> executor_;
  ContiguousCache cache_;
  std::vector<std::int32_t> tokens_;
  std::int64_t max_tokens_ = 0, batch_tokens_ = 0;
  std::vector<std::int32_t> positions_, logits_rows_;  // of the current step
  Buffer logits_;                                      // float [vocab_size]
  bool has_logits_ = false;
};

}  // namespace headrace::engine
