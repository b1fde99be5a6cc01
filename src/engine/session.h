// One sequence: an executor, a cache, the tokens in it and the logits behind the last one.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/language_model.h"
#include "kv_cache/contiguous_cache.h"

namespace headrace::engine {

struct SessionOptions {
  std::int64_t max_tokens = 0;      // of the sequence; 0: the model's context length
  std::int64_t batch_tokens = 512;  // of one step
  DType cache_dtype = DType::f16;
};

// The model has weights and outlives the session.
class Session {
 public:
  static Result<Session> make(const LanguageModel& model, const SessionOptions& options);

  // Appends tokens and computes the logits behind the last; with `logits`
  // [tokens.size(), vocab_size], those behind each of them. Nothing is appended on an error.
  Status append(std::span<const std::int32_t> tokens, float* logits);
  // Keeps the first `length` tokens, whose last one's logits are gone.
  Status truncate(std::int64_t length);

  const model::Decoder& decoder() const { return *decoder_; }
  std::span<const std::int32_t> tokens() const { return tokens_; }
  std::int64_t max_tokens() const { return max_tokens_; }
  // Behind the last token, [vocab_size]; null where there are none.
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
  std::vector<std::int32_t> positions_, logits_rows_;  // of a step
  Buffer logits_;                                      // float [vocab_size]
  bool has_logits_ = false;
};

}  // namespace headrace::engine
