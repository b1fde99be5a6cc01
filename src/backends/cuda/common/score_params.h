// What a problem says of its scores, for kernels: flags, and numbers as floats.
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
  std::int32_t has_alibi, has_tree_mask, is_top_left;
  std::int64_t num_heads;

  constexpr bool has_softcap() const { return softcap != 0; }
  constexpr bool has_dropout() const { return keep_threshold <= 0xFFFFu; }
};
inline ScoreParams make_score_params(const Problem& p) {
  const std::uint32_t threshold = has_dropout(p) ? dropout_keep_threshold(p.dropout_p) : 65536u;
  return {
      .scale = static_cast<float>(p.softmax_scale),
      .softcap = static_cast<float>(p.softcap),
      .scale_over_softcap = has_softcap(p) ? static_cast<float>(p.softmax_scale / p.softcap) : 0.0f,
      .keep_factor = static_cast<float>(65536.0 / threshold),
      .keep_threshold = threshold,
      .has_alibi = p.has_alibi,
      .has_tree_mask = p.has_tree_mask,
      .is_top_left = p.causal == HEADRACE_CAUSAL_TOP_LEFT,
      .num_heads = p.num_heads};
}

}  // namespace headrace::cuda
