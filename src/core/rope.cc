#include "core/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace headrace {
namespace {

bool is_positive(double value) { return value > 0 && std::isfinite(value); }

Status check_llama3(const RopeLlama3Scaling& scaling) {
  if (!is_positive(scaling.factor))
    return invalid_argument("factor={}: must be finite and positive; Llama 3.1 has 8",
                            scaling.factor);
  if (!is_positive(scaling.low_freq_factor) || !is_positive(scaling.high_freq_factor) ||
      scaling.high_freq_factor <= scaling.low_freq_factor)
    return invalid_argument(
        "low_freq_factor={}, high_freq_factor={}: must be finite and positive, and "
        "high_freq_factor must be larger; Llama 3.1 has 1 and 4",
        scaling.low_freq_factor, scaling.high_freq_factor);
  if (!is_positive(scaling.original_context_length))
    return invalid_argument(
        "original_context_length={}: must be finite and positive; Llama 3.1 has 8192",
        scaling.original_context_length);
  return {};
}

Status check_ntk(const RopeOptions& o) {
  if (!is_positive(o.ntk_factor))
    return invalid_argument("factor={}: must be finite and positive; pass 1 for no scaling",
                            o.ntk_factor);
  if (o.rot_dim <= 2)
    return invalid_argument(
        "rot_dim={} with NTK scaling: must be 4 or more, because the exponent is rot_dim / "
        "(rot_dim - 2); pass more dims or no scaling",
        o.rot_dim);
  return {};
}

Status check_yarn(const RopeOptions& o, const RopeYarnScaling& scaling) {
  if (!is_positive(scaling.factor))
    return invalid_argument("factor={}: must be finite and positive; pass 1 for no scaling",
                            scaling.factor);
  if (!is_positive(scaling.original_context_length))
    return invalid_argument(
        "original_context_length={}: must be finite and positive; pass the positions that the "
        "model was trained on before YaRN",
        scaling.original_context_length);
  if (!is_positive(scaling.beta_fast) || !is_positive(scaling.beta_slow) ||
      scaling.beta_fast < scaling.beta_slow)
    return invalid_argument(
        "beta_fast={}, beta_slow={}: must be finite and positive, and beta_fast at least "
        "beta_slow; the paper has 32 and 1",
        scaling.beta_fast, scaling.beta_slow);
  if (o.base <= 1)
    return invalid_argument("base={} with YaRN: must be above 1; pass 10000, the usual value",
                            o.base);
  return {};
}

Status check_factors(const RopeOptions& o) {
  if (o.freq_factors.empty()) return {};
  if (o.llama3)
    return invalid_argument(
        "freq_factors and llama3: both given, but factors contain the llama3 scaling and must be "
        "given alone; omit llama3");
  if (static_cast<std::int64_t>(o.freq_factors.size()) != o.rot_dim / 2)
    return invalid_argument(
        "freq_factors has {} entries: must be {}, rot_dim / 2; pass one per pair",
        o.freq_factors.size(), o.rot_dim / 2);
  for (std::size_t i = 0; i < o.freq_factors.size(); ++i)
    if (!is_positive(static_cast<double>(o.freq_factors[i])))
      return invalid_argument(
          "freq_factors[{}]={}: must be finite and positive; pass 1 for no scaling", i,
          o.freq_factors[i]);
  return {};
}

Status check_rot_dim(std::int64_t rot_dim) {
  if (rot_dim >= 2 && rot_dim % 2 == 0 && rot_dim <= 1 << 16) return {};
  return invalid_argument("rot_dim={}: must be even and 2 to 65536; pass at most head_dim",
                          rot_dim);
}

Status check_options(const RopeOptions& o) {
  HEADRACE_TRY(check_rot_dim(o.rot_dim));
  if (!is_positive(o.base))
    return invalid_argument("base={}: must be finite and positive; pass 10000, the usual value",
                            o.base);
  if (!is_positive(o.linear_factor))
    return invalid_argument("factor={}: must be finite and positive; pass 1 for no scaling",
                            o.linear_factor);
  if (o.ntk_factor != 1) HEADRACE_TRY(check_ntk(o));
  if (o.yarn) HEADRACE_TRY(check_yarn(o, *o.yarn));
  if (o.llama3) HEADRACE_TRY(check_llama3(*o.llama3));
  return check_factors(o);
}

double llama3_frequency(double frequency, const RopeLlama3Scaling& scaling) {
  const double turns = scaling.original_context_length * frequency / (2 * std::numbers::pi);
  if (turns < scaling.low_freq_factor) return frequency / scaling.factor;
  if (turns > scaling.high_freq_factor) return frequency;
  const double kept =
      (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - kept) * frequency / scaling.factor + kept * frequency;
}

// The pairs between which YaRN's ramp rises from unchanged to stretched.
struct YarnRamp {
  YarnRamp(const RopeOptions& o, const RopeYarnScaling& scaling)
      : first(pair_of(o, scaling, scaling.beta_fast)),
        last(pair_of(o, scaling, scaling.beta_slow)) {
    if (scaling.truncate) {
      first = std::floor(first);
      last = std::ceil(last);
    }
    first = std::max(first, 0.0);
    last = std::min(last, static_cast<double>(o.rot_dim - 1));
    if (first == last) last += 0.001;  // as published: no division by 0
  }
  double at(double pair) const { return std::clamp((pair - first) / (last - first), 0.0, 1.0); }

 private:
  // The pair that turns num_turns times in original_context_length positions, not rounded.
  static double pair_of(const RopeOptions& o, const RopeYarnScaling& scaling, double num_turns) {
    return static_cast<double>(o.rot_dim) *
           std::log(scaling.original_context_length / (num_turns * 2 * std::numbers::pi)) /
           (2 * std::log(o.base));
  }

  double first, last;
};

}  // namespace

double dynamic_ntk_factor(double factor, double original_context_length, double seqlen) {
  return factor * std::max(seqlen, original_context_length) / original_context_length -
         (factor - 1);
}

double yarn_attention_factor(double factor, double mscale, double mscale_all_dim) {
  const auto factor_of = [factor](double scale) {
    return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1;
  };
  if (mscale != 0 && mscale_all_dim != 0) return factor_of(mscale) / factor_of(mscale_all_dim);
  return factor_of(1);
}

Status fill_rope_frequencies(const RopeOptions& options, double* frequencies) {
  HEADRACE_TRY(check_options(options));
  const auto rot_dim = static_cast<double>(options.rot_dim);
  double base = options.base;
  if (options.ntk_factor != 1) base *= std::pow(options.ntk_factor, rot_dim / (rot_dim - 2));
  std::optional<YarnRamp> ramp;
  if (options.yarn) ramp.emplace(options, *options.yarn);
  for (std::int64_t i = 0; i < options.rot_dim / 2; ++i) {
    const auto pair = static_cast<double>(i);
    double frequency = std::pow(base, -2.0 * pair / rot_dim);
    if (options.llama3) frequency = llama3_frequency(frequency, *options.llama3);
    if (ramp) {
      const double stretched = ramp->at(pair);
      frequency = frequency / options.yarn->factor * stretched + frequency * (1 - stretched);
    }
    if (!options.freq_factors.empty())
      frequency /= static_cast<double>(options.freq_factors[static_cast<std::size_t>(i)]);
    frequencies[i] = frequency / options.linear_factor;
  }
  return {};
}

Result<std::vector<double>> rope_frequencies(const RopeOptions& options) {
  if (Status failure = check_rot_dim(options.rot_dim)) return *std::move(failure);
  std::vector<double> frequencies(static_cast<std::size_t>(options.rot_dim / 2));
  if (Status failure = fill_rope_frequencies(options, frequencies.data()))
    return *std::move(failure);
  return frequencies;
}

void rope_angles(std::span<const double> frequencies, std::span<const std::int32_t> positions,
                 float* cos, float* sin, double factor) {
  for (const std::int32_t position : positions)
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(position) * frequency;
      *cos++ = static_cast<float>(std::cos(angle) * factor);
      *sin++ = static_cast<float>(std::sin(angle) * factor);
    }
}

}  // namespace headrace
