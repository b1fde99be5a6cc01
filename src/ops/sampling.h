// Samples the next token from logits: mask, biases, penalties, temperature, filters, draw.
//
//   order           1     2          3            4            5      6      7
//   vllm (default)  bias  penalties  temperature  min_p        top_k  top_p  draw
//   transformers    bias  penalties  temperature  top_k        top_p  min_p  draw
//   llama_cpp       bias  penalties  top_k        top_p        min_p  temperature  draw
//
// So top_p sees the tokens that min_p and top_k kept (vllm) or those that top_k kept (the others),
// and llama_cpp filters at temperature 1. Each filter renormalises the probabilities of the tokens
// that the filters before it kept. The orders also differ in:
//
//                                   vllm, transformers           llama_cpp
//   top_k, ties with the k-th       all kept                     exactly k, the lowest ids
//   presence and frequency count    the output                   repetition_window
//
// The filters:
//   top_k  keeps the k largest.
//   top_p  keeps tokens in descending order (ties: the lowest id first) until their probabilities
//          reach top_p: at least one.
//   min_p  keeps tokens with at least min_p times the largest probability.
// Filters and draws add weights, exp((logit - largest) / temperature), rounded to 2^-34
// (mass_of()): a token 2^35 times less likely than the most likely one is not drawn.
// A token with logit -infinity is never drawn. Temperature 0 takes the largest logit after
// penalties, the lowest id among equals, and applies no filter.
//
// Penalties: the logit of a token in the window is divided by repetition_penalty if positive, else
// multiplied by it, once per token; then presence_penalty and count * frequency_penalty are
// subtracted.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "core/device.h"
#include "core/sampling_args.h"

namespace headrace {

enum class SamplingOrder { vllm, transformers, llama_cpp };

// Which logarithms are reported (vLLM's logprobs_mode).
enum class LogprobsMode {
  raw,        // of the softmax of the model's logits
  processed,  // of the probabilities of the draw: filtered tokens have none; greedy: 0
};

inline constexpr int kMaxLogprobs = 1024;

struct SamplingOptions {
  double temperature = 1;  // 0: greedy
  std::int64_t top_k = 0;  // 0: all
  double top_p = 1;
  double min_p = 0;
  double repetition_penalty = 1;
  // Last tokens of prompt + output; absent: all.
  std::optional<std::int64_t> repetition_window = {};
  double presence_penalty = 0;
  double frequency_penalty = 0;
  std::vector<LogitBias> logit_bias = {};
  std::uint64_t seed = 0;
  SamplingOrder order = SamplingOrder::vllm;
  std::optional<int> num_logprobs = {};  // n: of the token and of the n most likely; absent: none
  LogprobsMode logprobs_mode = LogprobsMode::raw;
};

// invalid_argument: an option is out of range. Call once per request; sample() does not repeat it.
Status check_sampling_options(const SamplingOptions& options, std::int64_t vocab_size);

struct SamplingInput {
  std::span<const float> logits = {};         // [vocab_size]
  std::span<const std::int32_t> prompt = {};  // tokens before the output
  std::span<const std::int32_t> output = {};  // tokens generated so far
  // Bit i: token i may be drawn. Empty: all; else (vocab_size + 63) / 64 words. It comes before
  // biases and penalties; raw logprobs do not see it.
  std::span<const std::uint64_t> mask = {};
  std::uint64_t sequence_id = 0;  // keys the draw, with seed and position
  std::int64_t position = 0;      // of the token to draw, below 2^32
};

struct TokenLogprob {
  std::int32_t token;
  float logprob;
};

struct Sample {
  std::int32_t token = 0;
  float logprob = 0;                           // with num_logprobs
  std::span<const TokenLogprob> top_logprobs;  // descending, ties by id; valid until the next call
};

// The filtered distribution: tokens[i] has probability weights[i] / sum. Valid until the next call.
struct Distribution {
  std::span<const std::int32_t> tokens;  // ascending; without filters and masks every token
  std::span<const float> weights;
  double sum;  // of the weights as they count (mass_of())
};

// A sampler and its buffers; only the first call with a vocabulary size allocates. One per thread.
class Sampler {
 public:
  // unsupported: not a CPU.
  static Result<Sampler> make(const DeviceInfo& device);
  ~Sampler();
  Sampler(Sampler&&) noexcept;
  Sampler& operator=(Sampler&&) noexcept;

  // invalid_argument: no logits, every token forbidden, a token of the history outside the
  // vocabulary, biases and penalties that make a logit infinite. io_error: the model's logits
  // contain NaN or +infinity.
  Result<Sample> sample(const SamplingInput& input, const SamplingOptions& options);

  // The same without the draw. Temperature 0: one token.
  Result<Distribution> distribution(const SamplingInput& input, const SamplingOptions& options);

 private:
  class State;
  explicit Sampler(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Of a token, from the logarithm of the sum of all weights at the temperature.
inline float logprob_of(float logit, double max, double temperature, double log_sum) {
  return static_cast<float>((static_cast<double>(logit) - max) / temperature - log_sum);
}

// The errors of logits from which no token can be drawn.
Failure bad_logit_of_model(std::size_t i, float logit);  // NaN or +infinity
Failure bad_edited_logit(std::size_t i, float logit, float logit_of_model);
Failure all_logits_forbidden(std::size_t num_logits);

}  // namespace headrace
