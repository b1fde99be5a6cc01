// One sequence of tokens and what the model has computed of it.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/aligned.h"
#include "kv_cache/kv_cache.h"
#include "model/decoder.h"

namespace headrace::engine {

struct SessionOptions {
  std::int64_t max_tokens = 0;      // of the sequence; 0: the model's context length
  std::int64_t batch_tokens = 512;  // that go through the network at once
  DType cache_dtype = DType::f16;
};

// The decoder outlives the session.
class Session {
 public:
  static Result<Session> make(const model::Decoder& decoder, const SessionOptions& options);

  // Appends tokens and computes the logits behind the last; with `logits`
  // [tokens.size(), vocab_size], those behind each of them. Nothing is appended on an error.
  Status append(std::span<const std::int32_t> tokens, float* logits);
  // Keeps the first `length` tokens, whose last one's logits are gone.
  Status truncate(std::int64_t length);

  const model::Decoder& decoder() const { return *decoder_; }
  std::span<const std::int32_t> tokens() const { return tokens_; }
  std::int64_t max_tokens() const { return max_tokens_; }
  // Behind the last token, [vocab_size]; null where there are none.
  const float* logits() const { return has_logits_ ? logits_.get() : nullptr; }

 private:
  Session() = default;
  Status check(std::span<const std::int32_t> tokens) const;
  Status append_all(std::span<const std::int32_t> tokens, float* logits);

  const model::Decoder* decoder_ = nullptr;
  std::unique_ptr<KvCache> cache_;
  model::DecoderScratch scratch_;
  std::vector<std::int32_t> tokens_;
  std::int64_t max_tokens_ = 0;
  Aligned<float> logits_;
  bool has_logits_ = false;
};

}  // namespace headrace::engine
