// The end of a row's softmax: sink, dropout's factor, lse.
#pragma once

#include "backends/cuda/common/scores.cuh"

namespace headrace::cuda {

struct RowEnd {
  float factor;  // for the sum of P V
  float lse;
};

// `sum` is the sum of 2^(log2(e) s - reference) over the keys, before dropout. No visible key, or
// scores of -inf alone: the row is empty and stays so beside a sink.
__device__ inline RowEnd end_of_row(const Problem& p, const AttentionArgs& args,
                                    const ScoreNumbers& numbers, std::int64_t head, float reference,
                                    float sum) {
  constexpr float kLn2 = 0x1.62e43p-1f;
  if (sum == 0.0f) return {0.0f, -HUGE_VALF};
  float lse = fmaf(reference, kLn2, logf(sum));
  float share = 1.0f;  // of the keys, against the sink
  if (p.has_sinks) {
    const float sink = args.sinks[head * args.sinks_stride];
    const float top = sink > lse ? sink : lse;
    const float keys = lse == top ? 1.0f : expf(lse - top);
    const float both = keys + (sink == top ? 1.0f : expf(sink - top));
    share = keys / both;
    lse = top + logf(both);
  }
  return {numbers.keep_factor * share / sum, lse};
}

__device__ inline void store_lse(const LseOperand& to, std::int64_t batch_idx, std::int64_t head,
                                 std::int64_t row, float lse) {
  if (to.data == nullptr) return;
  static_cast<float*>(
      to.data)[batch_idx * to.stride_batch + head * to.stride_head + row * to.stride_q] = lse;
}

}  // namespace headrace::cuda
