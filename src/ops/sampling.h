// The next token from logits: biases, penalties, temperature, filters, one draw.
//
//   order           1     2          3            4            5      6      7
//   vllm (default)  bias  penalties  temperature  min_p        top_k  top_p  draw
//   transformers    bias  penalties  temperature  top_k        top_p  min_p  draw
//   llama_cpp       bias  penalties  top_k        top_p        min_p  temperature  draw
//
// So top_p sees what min_p left (vllm) or everything (the others), and with llama_cpp both judge
// probabilities at temperature 1. Each filter judges probabilities that sum to 1 over what the
// filters before it left. Besides the order, the presets differ in these:
//
//                                vllm, transformers                  llama_cpp
//   top_k, ties of the k-th      all kept                            exactly k, the lowest ids
//   presence, frequency count    the output                          repetition_window
//
// The filters, in all of them:
//   top_k  the k largest.
//   top_p  in falling order (ties: the lowest id first) all up to the one with which their sum
//          reaches top_p: at least one.
//   min_p  at least min_p times the largest probability.
// A token of -infinity is never drawn. Temperature 0 takes the largest logit after penalties, the
// lowest id of equal ones, and no filter.
//
// Penalties: a token of the window has its logit divided by repetition_penalty where positive,
// else multiplied by it, once however often it is there; then presence_penalty and count *
// frequency_penalty are subtracted.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "core/device.h"

namespace headrace {

enum class SamplingOrder { vllm, transformers, llama_cpp };

// Whose logarithms are reported.
enum class LogprobsMode {
  raw,        // softmax of the logits as the model gave them
  processed,  // the probabilities of the draw: tokens that a filter dropped have none; greedy: 1
};

struct LogitBias {
  std::int32_t token;
  float value;  // added; -infinity forbids the token
};

inline constexpr int kMaxLogprobs = 1024;

struct SamplingOptions {
  double temperature = 1;  // 0: greedy
  std::int64_t top_k = 0;  // 0: all
  double top_p = 1;
  double min_p = 0;
  double repetition_penalty = 1;
  std::optional<std::int64_t> repetition_window =
      {};  // last tokens of prompt + output; absent: all
  double presence_penalty = 0;
  double frequency_penalty = 0;
  std::vector<LogitBias> logit_bias = {};
  std::uint64_t seed = 0;
  SamplingOrder order = SamplingOrder::vllm;
  std::optional<int> num_logprobs = {};  // absent: no logprob; n: the token's and the n largest
  LogprobsMode logprobs_mode = LogprobsMode::raw;
};

// invalid_argument where an option has no meaning. Once a request; sample() relies on it.
Status check_sampling_options(const SamplingOptions& options, std::int64_t vocab_size);

struct SamplingInput {
  std::span<const float> logits = {};         // [vocab_size]
  std::span<const std::int32_t> prompt = {};  // tokens before the output
  std::span<const std::int32_t> output = {};  // tokens generated so far
  std::uint64_t sequence_id = 0;              // with the seed and the position the key of the draw
  std::int64_t position = 0;                  // of the token to draw, below 2^32
};

struct TokenLogprob {
  std::int32_t token;
  float logprob;
};

struct Sample {
  std::int32_t token = 0;
  float logprob = 0;                           // with num_logprobs
  std::span<const TokenLogprob> top_logprobs;  // falling, ties by id; until the next call
};

// What is left to draw from: probability of tokens[i] = weights[i] / sum. Until the next call.
struct Distribution {
  std::span<const std::int32_t> tokens;  // ascending; without any filter every token
  std::span<const float> weights;
  double sum;
};

// Memory for sampling, so that only the first call of a vocabulary size allocates. One a thread.
class Sampler {
 public:
  explicit Sampler(const DeviceInfo& device);
  ~Sampler();
  Sampler(Sampler&&) noexcept;
  Sampler& operator=(Sampler&&) noexcept;

  // invalid_argument: no logits, every token forbidden, a token of the history that is not of the
  // vocabulary, biases and penalties that make a logit infinite. io_error: a NaN or +infinity among
  // the logits.
  Result<Sample> sample(const SamplingInput& input, const SamplingOptions& options);

  // The same without the draw. Temperature 0: the one token.
  Result<Distribution> distribution(const SamplingInput& input, const SamplingOptions& options);

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace headrace
