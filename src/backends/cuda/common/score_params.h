// Numbers of a problem that the device needs as floats.
#pragma once

#include "core/philox.h"
#include "core/problem.h"

namespace headrace::cuda {

// Made on the host: the device has no fast doubles.
struct ScoreParams {
  float scale;
  float softcap, scale_over_softcap;  // 0: none; scale / softcap
  float keep_factor;                  // of dropout: for what stays
  std::uint32_t keep_threshold;       // 65536: nothing is dropped
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
