#include <cmath>

#include "ops/sampling.h"

namespace headrace {
namespace {

// Beyond these, (logit - max) / temperature loses its meaning in float.
constexpr double kMinTemperature = 1e-5, kMaxTemperature = 1e5;

Status check_filters(const SamplingOptions& o) {
  const bool is_usual = o.temperature >= kMinTemperature && o.temperature <= kMaxTemperature;
  if (o.temperature != 0 && !is_usual)
    return invalid_argument(
        "temperature={}: must be 0 (greedy) or 1e-5 to 1e5; pass 1 for the model's distribution",
        o.temperature);
  if (o.top_k < 0)
    return invalid_argument("top_k={}: must not be negative; pass 0 to keep all tokens", o.top_k);
  if (!(o.top_p > 0 && o.top_p <= 1))
    return invalid_argument("top_p={}: must be above 0 and at most 1; pass 1 to keep all tokens",
                            o.top_p);
  if (!(o.min_p >= 0 && o.min_p <= 1))
    return invalid_argument("min_p={}: must be 0 to 1; pass 0 to keep all tokens", o.min_p);
  return {};
}

Status check_penalties(const SamplingOptions& o) {
  if (!(o.repetition_penalty >= 1e-3 && o.repetition_penalty <= 1e3))
    return invalid_argument(
        "repetition_penalty={}: must be 0.001 to 1000; pass 1 for none, more to reduce repetition",
        o.repetition_penalty);
  if (o.repetition_window && *o.repetition_window < 0)
    return invalid_argument(
        "repetition_window={}: must not be negative; omit it for the whole history",
        *o.repetition_window);
  const struct {
    const char* name;
    double value;
  } penalties[] = {{"presence_penalty", o.presence_penalty},
                   {"frequency_penalty", o.frequency_penalty}};
  for (const auto& penalty : penalties)
    if (!(std::abs(penalty.value) <= 1e6))
      return invalid_argument("{}={}: must be -1e6 to 1e6; pass 0 for none", penalty.name,
                              penalty.value);
  return {};
}

Status check_bias(const SamplingOptions& o, std::int64_t vocab_size) {
  for (std::size_t i = 0; i < o.logit_bias.size(); ++i) {
    const LogitBias& bias = o.logit_bias[i];
    if (bias.token < 0 || bias.token >= vocab_size)
      return invalid_argument(
          "logit_bias[{}].token={}: must be 0 to {}; pass tokens of this vocabulary", i, bias.token,
          vocab_size - 1);
    const bool is_ban = std::isinf(bias.value) && bias.value < 0;
    if (!(std::abs(bias.value) <= 1e6f) && !is_ban)
      return invalid_argument(
          "logit_bias[{}].value={}: must be -1e6 to 1e6; pass -infinity to forbid the token", i,
          bias.value);
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
        "num_logprobs={}: must be 0 to {}; pass 0 for the drawn token alone, omit it for none",
        *options.num_logprobs, kMaxLogprobs);
  return {};
}

}  // namespace headrace
