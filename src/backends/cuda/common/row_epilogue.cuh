// Epilogue of a row's softmax: normalisation, sink, dropout's scale, lse.
#pragma once

#include "backends/cuda/common/constants.h"
#include "backends/cuda/common/kernel_args.h"

namespace headrace::cuda {

struct RowEpilogue {
  float factor;  // O = factor * sum of P V
  float lse;
};

// 1 / x within 1 ulp, without a branch for overflow.
__device__ __forceinline__ float rcp_approx(float x) {
  float y;
  asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// `sum` is the sum of 2^(log2(e) s - reference) over the keys, before dropout. A row without a
// visible key, or with scores of -inf only, is empty: O = 0 and lse = -inf, also with a sink. A
// bias near -FLT_MAX overflows `reference`: the lse is then `max_score`, the largest s, which
// log(sum) does not change.
__device__ inline RowEpilogue row_epilogue(const SinkArgs& sinks, float keep_factor,
                                           std::int64_t head, float reference, float sum,
                                           float max_score) {
  if (sum == 0.0f) return {0.0f, -HUGE_VALF};
  RowEpilogue end = {keep_factor * rcp_approx(sum), fmaf(reference, kLn2, logf(sum))};
  if (reference == -HUGE_VALF && max_score > -HUGE_VALF) end.lse = max_score;  // not beside NaN
  if (sinks.has_sinks) [[unlikely]] {
    const float sink = sinks.sinks[head * sinks.stride];
    const float top = fmaxf(sink, end.lse);
    const float keys = end.lse == top ? 1.0f : expf(end.lse - top);
    const float both = keys + (sink == top ? 1.0f : expf(sink - top));
    end = {end.factor * keys * rcp_approx(both), top + logf(both)};
  }
  return end;
}

__device__ inline void store_lse(const LseOperand& to, std::int64_t batch_idx, std::int64_t head,
                                 std::int64_t row, float lse) {
  if (to.data == nullptr) return;
  static_cast<float*>(
      to.data)[batch_idx * to.stride_batch + head * to.stride_head + row * to.stride_q] = lse;
}

}  // namespace headrace::cuda
