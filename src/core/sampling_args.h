// The arguments of the passes over logits that sampling makes.
#pragma once

#include <cstdint>

namespace headrace {

// Logits per block maximum, and weights per block sum.
inline constexpr std::int64_t kLogitBlock = 64;
inline constexpr std::int64_t kWeightBlock = 256;

// maxima[i] is the maximum of the i-th block of kLogitBlock logits; NaN is ignored.
struct BlockMaximaArgs {
  const float* logits;  // [num_logits]
  std::int64_t num_logits;
  float* maxima;  // [ceil(num_logits / kLogitBlock)]
};

// weights[i] = exp((logits[i] - max) / temperature), flushed to 0 below 2^-126; block_sums[i] is
// the sum of the i-th block of kWeightBlock weights.
struct ExpWeightsArgs {
  const float* logits;  // [num_logits]
  std::int64_t num_logits;
  float max;  // the maximum of the logits; finite
  float temperature;
  float* weights;      // [num_logits]
  double* block_sums;  // [ceil(num_logits / kWeightBlock)]
};

}  // namespace headrace
