#include "model/channel_factors.h"

#include <algorithm>
#include <cmath>

namespace headrace::model {
namespace {

// Scales follow the largest of many keys, which is about three standard deviations from the bias.
constexpr float kNumDeviations = 3;
// Queries times factors, and keys over them, stay within f16.
constexpr float kMaxExponent = 8;

// The channel that RoPE rotates together with another one; itself if none.
std::int64_t partner_of(const Config& config, std::int64_t channel) {
  const std::int64_t half = config.rope_dim / 2;
  if (channel >= config.rope_dim) return channel;
  if (config.rope_layout == RopeLayout::interleaved) return channel ^ 1;
  return channel < half ? channel + half : channel - half;
}

// A power of two; 1 where a size is 0 or none.
float factor_of(float size, float typical) {
  const float ratio = size / typical;
  if (!(ratio > 0)) return 1;
  const float exponent = std::clamp(std::round(std::log2(ratio)), -kMaxExponent, kMaxExponent);
  return std::ldexp(1.0F, static_cast<int>(exponent));
}

}  // namespace

std::vector<float> row_variances(std::span<const float> matrix, std::span<const float> norm) {
  std::vector<float> sums(matrix.size() / norm.size());
  for (std::size_t row = 0; row < sums.size(); ++row)
    for (std::size_t i = 0; i < norm.size(); ++i) {
      const float x = matrix[row * norm.size() + i] * norm[i];
      sums[row] += x * x;
    }
  return sums;
}

std::vector<float> channel_factors(const Config& config, std::span<const float> bias,
                                   std::span<const float> variances) {
  const auto head_dim = static_cast<std::size_t>(config.head_dim);
  std::vector<float> factors, sizes(head_dim);
  factors.reserve(bias.size());
  for (std::size_t head = 0; head < bias.size(); head += head_dim) {
    const auto square = [&](std::int64_t channel) {
      const std::size_t i = head + static_cast<std::size_t>(channel);
      return bias[i] * bias[i] + kNumDeviations * kNumDeviations * variances[i];
    };
    for (std::int64_t c = 0; c < config.head_dim; ++c) {
      const float size = std::sqrt(square(c) + square(partner_of(config, c)));
      sizes[static_cast<std::size_t>(c)] = std::isfinite(size) ? size : 0;
    }
    std::vector<float> sorted = sizes;
    std::ranges::sort(sorted);
    for (const float size : sizes) factors.push_back(factor_of(size, sorted[head_dim / 2]));
  }
  return factors;
}

}  // namespace headrace::model
