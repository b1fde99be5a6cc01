// Parameters of the scores as floats.
#pragma once

#include "core/philox.h"
#include "core/problem.h"

namespace headrace::cuda {

// Computed on the host, because doubles are slow on the device.
struct ScoreParams {
  float scale;
  float softcap, scale_over_softcap;  // 0: none; scale / softcap
  float keep_factor;                  // dropout: 1 / keep probability
  std::uint32_t keep_threshold;       // 65536: no dropout
};
inline ScoreParams make_score_params(const Problem& p) {
  const std::uint32_t threshold = has_dropout(p) ? dropout_keep_threshold(p.dropout_p) : 65536u;
  return {
      .scale = static_cast<float>(p.softmax_scale),
      .softcap = static_cast<float>(p.softcap),
      .scale_over_softcap = has_softcap(p) ? static_cast<float>(p.softmax_scale / p.softcap) : 0.0f,
      .keep_factor = static_cast<float>(65536.0 / threshold),
      .keep_threshold = threshold};
}

}  // namespace headrace::cuda
