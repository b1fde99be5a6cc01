#include "ops/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/logit_filter.h"
#include "ops/penalised_tokens.h"
#include "ops/uniform.h"

namespace headrace {

class Sampler::State {
 public:
  explicit State(const DeviceInfo& device) : filter_(device) { top_.reserve(kMaxLogprobs); }

  Result<Sample> sample(const SamplingInput& input, const SamplingOptions& options) {
    if (Status wrong = prepare(input, options)) return *std::move(wrong);
    Sample result;
    if (options.temperature == 0) {
      result.token = filter_.argmax();
    } else {
      const Distribution left = filter_.distribution(options.temperature);
      const double u =
          uniform_at(options.seed, input.sequence_id, input.position, UniformPurpose::sampling);
      result.token = left.tokens[filter_.pick(u)];
    }
    if (options.num_logprobs) add_logprobs(input, options, result);
    return result;
  }

  Result<Distribution> distribution(const SamplingInput& input, const SamplingOptions& options) {
    if (Status wrong = prepare(input, options)) return *std::move(wrong);
    if (options.temperature != 0) return filter_.distribution(options.temperature);
    static constexpr float kOne = 1;
    greedy_token_ = filter_.argmax();
    return Distribution{{&greedy_token_, 1}, {&kOne, 1}, 1};
  }

 private:
  Status prepare(const SamplingInput& input, const SamplingOptions& options);
  void copy_allowed(const SamplingInput& input);  // to processed_
  Status penalise(const SamplingInput& input, const SamplingOptions& options);
  void add_logprobs(const SamplingInput& input, const SamplingOptions& options, Sample& sample);

  LogitFilter filter_;
  PenalisedTokens penalised_;
  std::vector<float> processed_;   // [vocab_size] logits after biases and penalties
  std::span<const float> logits_;  // processed_, or the input's logits
  std::vector<TokenLogprob> top_;
  std::int32_t greedy_token_ = 0;
};

Failure bad_logit_of_model(std::size_t i, float logit) {
  return {ErrorCode::io_error,
          format_text("logits[{}]={}, as the model computed it: must be a number or -infinity; "
                      "the weights are damaged or overflow; check the model file",
                      i, logit)};
}

Failure bad_edited_logit(std::size_t i, float logit, float logit_of_model) {
  return invalid_argument(
      "logits[{}]={} after biases and penalties, {} before: must be a number or -infinity; make "
      "logit_bias and the penalties smaller",
      i, logit, logit_of_model);
}

Failure all_logits_forbidden(std::size_t num_logits) {
  return invalid_argument(
      "logits: all {} are -infinity, so no token can be drawn; allow one in the mask and in "
      "logit_bias",
      num_logits);
}

namespace {

// The index of a logit that is NaN or +infinity.
std::optional<std::size_t> find_bad_logit(std::span<const float> logits) {
  const auto found = std::find_if(logits.begin(), logits.end(), [](float logit) {
    return !(logit < std::numeric_limits<float>::infinity());
  });
  if (found == logits.end()) return std::nullopt;
  return static_cast<std::size_t>(found - logits.begin());
}

// Bad logits of the model are not an error of the caller.
Failure bad_logits(std::span<const float> of_model, std::span<const float> logits) {
  if (const auto i = find_bad_logit(of_model)) return bad_logit_of_model(*i, of_model[*i]);
  if (const auto i = find_bad_logit(logits)) return bad_edited_logit(*i, logits[*i], of_model[*i]);
  return {ErrorCode::internal, "logits: a NaN or infinity was reported, but is not found"};
}

}  // namespace

Status Sampler::State::prepare(const SamplingInput& input, const SamplingOptions& options) {
  if (input.logits.empty())
    return invalid_argument("logits: empty; pass one logit per token of the vocabulary");
  logits_ = input.logits;
  if (processed_.size() < input.logits.size()) {
    processed_.resize(input.logits.size());
    penalised_.reserve(input.logits.size());
  }
  if (!input.mask.empty() || changes_logits(options)) {
    copy_allowed(input);
    logits_ = {processed_.data(), input.logits.size()};
  }
  if (changes_logits(options))
    if (Status wrong = penalise(input, options)) return wrong;
  if (!filter_.begin(logits_)) return bad_logits(input.logits, logits_);
  if (std::isinf(filter_.max())) return all_logits_forbidden(logits_.size());
  if (options.temperature != 0) filter_.apply(options);
  return {};
}

// The logits with their mask. Adds -infinity rather than storing it, so that a NaN of the model is
// still found. Most words of a mask allow nothing: a loop of constant length over such a word is
// vectorised.
void Sampler::State::copy_allowed(const SamplingInput& input) {
  constexpr float kForbidden = -std::numeric_limits<float>::infinity();
  constexpr std::size_t kBits = 64;
  constexpr std::uint64_t kEvery = ~std::uint64_t{0};
  for (std::size_t i = 0; i < input.logits.size(); i += kBits) {
    const std::uint64_t allowed = input.mask.empty() ? kEvery : input.mask[i / kBits];
    const float* const from = input.logits.data() + i;
    float* const to = processed_.data() + i;
    const std::size_t count = std::min(kBits, input.logits.size() - i);
    if (allowed == kEvery)
      std::copy_n(from, count, to);
    else if (allowed == 0 && count == kBits)
      for (std::size_t k = 0; k < kBits; ++k) to[k] = from[k] + kForbidden;
    else
      for (std::size_t k = 0; k < count; ++k)
        to[k] = from[k] + ((allowed >> k & 1) != 0 ? 0.0f : kForbidden);
  }
}

Status Sampler::State::penalise(const SamplingInput& input, const SamplingOptions& options) {
  const std::size_t vocab_size = input.logits.size();
  for (const LogitBias& bias : options.logit_bias) {
    if (bias.token < 0 || static_cast<std::size_t>(bias.token) >= vocab_size)
      return invalid_argument(
          "logit_bias: token {} must be 0 to {}; pass tokens of this vocabulary", bias.token,
          vocab_size - 1);
    processed_[static_cast<std::size_t>(bias.token)] += bias.value;
  }
  HEADRACE_TRY(penalised_.collect(input, options, vocab_size));
  for (const TokenCount& of : penalised_.repeated()) {
    float& logit = processed_[static_cast<std::size_t>(of.token)];
    const double x = logit, penalty = options.repetition_penalty;
    logit = static_cast<float>(x > 0 ? x / penalty : x * penalty);
  }
  for (const TokenCount& of : penalised_.counted()) {
    float& logit = processed_[static_cast<std::size_t>(of.token)];
    const double count = of.count;
    logit = static_cast<float>(static_cast<double>(logit) - options.presence_penalty -
                               options.frequency_penalty * count);
  }
  return {};
}

void Sampler::State::add_logprobs(const SamplingInput& input, const SamplingOptions& options,
                                  Sample& sample) {
  top_.clear();
  const bool is_raw = options.logprobs_mode == LogprobsMode::raw;
  const std::span<const float> logits = is_raw ? input.logits : logits_;
  const auto count = static_cast<std::int64_t>(*options.num_logprobs);
  if (!is_raw && options.temperature == 0) {
    if (count > 0) top_.push_back({sample.token, 0.0f});
    sample.top_logprobs = top_;
    return;
  }
  const double temperature = is_raw ? 1 : options.temperature;
  if (is_raw) filter_.begin(logits);
  const double log_sum = std::log(filter_.distribution(temperature).sum);
  const double max = filter_.max();
  const auto logprob = [&](float logit) { return logprob_of(logit, max, temperature, log_sum); };
  sample.logprob = logprob(logits[static_cast<std::size_t>(sample.token)]);
  for (const Candidate& candidate : filter_.largest(count))
    top_.push_back({candidate.token, logprob(candidate.logit)});
  sample.top_logprobs = top_;
}

Result<Sampler> Sampler::make(const DeviceInfo& device) {
  if (device.device_type != HEADRACE_CPU)
    return unsupported(
        "sampling on [{}]: must be a CPU; copy the logits to the host and sample them there",
        device_text(device));
  return Sampler(std::make_unique<State>(device));
}

Sampler::Sampler(std::unique_ptr<State> state) : state_(std::move(state)) {}
Sampler::~Sampler() = default;
Sampler::Sampler(Sampler&&) noexcept = default;
Sampler& Sampler::operator=(Sampler&&) noexcept = default;

Result<Sample> Sampler::sample(const SamplingInput& input, const SamplingOptions& options) {
  return state_->sample(input, options);
}

Result<Distribution> Sampler::distribution(const SamplingInput& input,
                                           const SamplingOptions& options) {
  return state_->distribution(input, options);
}

}  // namespace headrace
