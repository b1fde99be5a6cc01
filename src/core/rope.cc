#include "core/rope.h"

#include <cmath>
#include <numbers>

namespace headrace {
namespace {

bool is_positive(double value) { return value > 0 && std::isfinite(value); }

Status check_llama3(const RopeLlama3Scaling& scaling) {
  if (!is_positive(scaling.factor))
    return invalid_argument("llama3.factor={}: must be finite and positive; Llama 3.1 has 8",
                            scaling.factor);
  if (!is_positive(scaling.low_freq_factor) || !is_positive(scaling.high_freq_factor) ||
      scaling.high_freq_factor <= scaling.low_freq_factor)
    return invalid_argument(
        "llama3.low_freq_factor={}, high_freq_factor={}: must be finite and positive, and "
        "high_freq_factor must be larger; Llama 3.1 has 1 and 4",
        scaling.low_freq_factor, scaling.high_freq_factor);
  if (!is_positive(scaling.original_context_length))
    return invalid_argument(
        "llama3.original_context_length={}: must be finite and positive; Llama 3.1 has 8192",
        scaling.original_context_length);
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

Status check_options(const RopeOptions& o) {
  if (o.rot_dim < 2 || o.rot_dim % 2 != 0 || o.rot_dim > 1 << 16)
    return invalid_argument("rot_dim={}: must be even and 2 to 65536; pass at most head_dim",
                            o.rot_dim);
  if (!is_positive(o.base))
    return invalid_argument("base={}: must be finite and positive; pass 10000, the usual value",
                            o.base);
  if (!is_positive(o.linear_factor))
    return invalid_argument("linear_factor={}: must be finite and positive; pass 1 for no scaling",
                            o.linear_factor);
  if (o.llama3)
    if (Status wrong = check_llama3(*o.llama3)) return wrong;
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

}  // namespace

Result<std::vector<double>> rope_frequencies(const RopeOptions& options) {
  if (Status failure = check_options(options)) return *std::move(failure);
  std::vector<double> frequencies(static_cast<std::size_t>(options.rot_dim / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(options.rot_dim);
    double frequency = std::pow(options.base, exponent);
    if (options.llama3) frequency = llama3_frequency(frequency, *options.llama3);
    if (!options.freq_factors.empty()) frequency /= static_cast<double>(options.freq_factors[i]);
    frequencies[i] = frequency / options.linear_factor;
  }
  return frequencies;
}

void rope_angles(std::span<const double> frequencies, std::span<const std::int32_t> positions,
                 float* cos, float* sin) {
  for (const std::int32_t position : positions)
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(position) * frequency;
      *cos++ = static_cast<float>(std::cos(angle));
      *sin++ = static_cast<float>(std::sin(angle));
    }
}

}  // namespace headrace
