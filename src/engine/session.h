// One sequence: its cached tokens and the logits of the last one. A facade over a model runner.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "engine/model_runner.h"

namespace headrace::engine {

struct SessionOptions {
  std::int64_t max_tokens = 0;    // context length; 0: the model's
  std::int64_t batch_tokens = 0;  // of a prompt per step (chunked prefill); 0: by the device
  DType cache_dtype = DType::f16;
  std::optional<DType> k_dtype = {}, v_dtype = {};  // of codes; empty: cache_dtype
  std::int64_t page_size = 16;                      // tokens per page of the KV cache
  std::int64_t num_pages = 0;  // of the KV cache; 0: those of one sequence of max_tokens
  SparqSizes sparq = {};       // of tokens that are appended alone
};

// The model must have weights and outlive the session.
class Session {
 public:
  static Result<Session> make(const LanguageModel& model, const SessionOptions& options);

  // Appends tokens and computes the logits of the last one; with `logits`
  // [tokens.size(), vocab_size], the logits of each of them. On an error nothing is appended.
  Status append(std::span<const std::int32_t> tokens, float* logits);
  // Keeps the first `length` tokens. Afterwards there are no logits, unless it keeps all tokens.
  Status truncate(std::int64_t length);

  const model::Decoder& decoder() const { return runner_.decoder(); }
  // For branches of the sequence.
  ModelRunner& runner() { return runner_; }
  std::int64_t sequence() const { return sequence_; }  // in the cache
  const KvCache& cache() const { return runner_.cache(); }
  std::span<const std::int32_t> tokens() const { return tokens_; }
  std::int64_t max_tokens() const { return max_tokens_; }
  std::int64_t batch_tokens() const { return batch_tokens_; }
  // Of the last token, [vocab_size]; null: none.
  const float* logits() const { return has_logits_ ? logits_.as<float>() : nullptr; }

 private:
  explicit Session(ModelRunner runner) : runner_(std::move(runner)) {}
  Status check(std::span<const std::int32_t> tokens) const;
  Status append_all(std::size_t num_new, float* logits);
  Status reserve(std::int64_t num_tokens);
  void forget_behind(std::size_t length);
  Status truncate_cache();

  ModelRunner runner_;
  std::int64_t sequence_ = 0;
  std::vector<std::int32_t> tokens_;  // the cache may lack the last ones of them
  std::vector<bool> was_alone_;       // of each: appended by a call of one token
  std::int64_t max_tokens_ = 0, batch_tokens_ = 0;
  Buffer logits_;  // float [vocab_size], in memory of the host
  bool has_logits_ = false;
};

}  // namespace headrace::engine
