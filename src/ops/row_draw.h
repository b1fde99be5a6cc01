// A token that is drawn from a row of logits, on the host (host_sampler.h) or a GPU
// (device_sampler.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ops/sampling.h"

namespace headrace {

struct RowDraw {
  std::int64_t row;  // of the logits
  const SamplingOptions* options;
  SamplingInput input;  // without logits
  // Results.
  std::optional<std::int32_t> token = {};
  float logprob = 0;                            // of the token, with num_logprobs
  std::vector<TokenLogprob> top_logprobs = {};  // as Sample has them
  Status failure = {};                          // that of Sampler
};

}  // namespace headrace
