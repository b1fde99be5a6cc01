#include <cmath>

#include "ops/sampling.h"

namespace headrace {
namespace {

// Beyond these (logit - max) / temperature is no longer what a float can tell apart.
constexpr double kMinTemperature = 1e-5, kMaxTemperature = 1e5;

Status check_filters(const SamplingOptions& o) {
  const bool is_usual = o.temperature >= kMinTemperature && o.temperature <= kMaxTemperature;
  if (o.temperature != 0 && !is_usual)
    return invalid_argument(
        "temperature={} must be 0 or within 1e-5 and 1e5: 0 always takes the likeliest token",
        o.temperature);
  if (o.top_k < 0)
    return invalid_argument("top_k={} must not be negative: 0 keeps all tokens", o.top_k);
  if (!(o.top_p > 0 && o.top_p <= 1))
    return invalid_argument("top_p={} must be above 0 and at most 1: 1 keeps all tokens", o.top_p);
  if (!(o.min_p >= 0 && o.min_p <= 1))
    return invalid_argument("min_p={} must be within 0 and 1: 0 keeps all tokens", o.min_p);
  return {};
}

Status check_penalties(const SamplingOptions& o) {
  if (!(o.repetition_penalty >= 1e-3 && o.repetition_penalty <= 1e3))
    return invalid_argument(
        "repetition_penalty={} must be within 0.001 and 1000: above 1 makes repetitions rarer, 1 "
        "changes nothing",
        o.repetition_penalty);
  if (o.repetition_window && *o.repetition_window < 0)
    return invalid_argument(
        "repetition_window={} must not be negative: leave it out for the whole history",
        *o.repetition_window);
  const struct {
    const char* name;
    double value;
  } penalties[] = {{"presence_penalty", o.presence_penalty},
                   {"frequency_penalty", o.frequency_penalty}};
  for (const auto& penalty : penalties)
    if (!(std::abs(penalty.value) <= 1e6))
      return invalid_argument("{}={} must be a number within -1e6 and 1e6: 0 changes nothing",
                              penalty.name, penalty.value);
  return {};
}

Status check_bias(const SamplingOptions& o, std::int64_t vocab_size) {
  for (std::size_t i = 0; i < o.logit_bias.size(); ++i) {
    const LogitBias& bias = o.logit_bias[i];
    if (bias.token < 0 || bias.token >= vocab_size)
      return invalid_argument("logit_bias[{}].token={} is no token of a vocabulary of {}", i,
                              bias.token, vocab_size);
    const bool is_ban = std::isinf(bias.value) && bias.value < 0;
    if (!(std::abs(bias.value) <= 1e6f) && !is_ban)
      return invalid_argument(
          "logit_bias[{}].value={} must be within -1e6 and 1e6, or -infinity to forbid the token",
          i, bias.value);
  }
  return {};
}

}  // namespace

Status check_sampling_options(const SamplingOptions& options, std::int64_t vocab_size) {
  if (Status wrong = check_filters(options)) return wrong;
  if (Status wrong = check_penalties(options)) return wrong;
  if (Status wrong = check_bias(options, vocab_size)) return wrong;
  if (options.num_logprobs && (*options.num_logprobs < 0 || *options.num_logprobs > kMaxLogprobs))
    return invalid_argument(
        "num_logprobs={} must be within 0 and {}: 0 for that of the token alone, leave it out for "
        "none",
        *options.num_logprobs, kMaxLogprobs);
  return {};
}

}  // namespace headrace
