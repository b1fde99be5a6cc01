// Combines the partial results of the splits of a row (split KV). One warp per row, splits in the
// order of their keys.
#pragma once

#include "backends/cuda/common/element.cuh"
#include "backends/cuda/common/lengths.cuh"
#include "backends/cuda/common/row_epilogue.cuh"
#include "backends/cuda/device/mma.cuh"
#include "backends/cuda/sm80/fwd/params.h"

namespace headrace::cuda::sm80::fwd {

inline constexpr int kCombineWarps = 4;

template <class T>
__global__ void __launch_bounds__(32 * kCombineWarps)
    combine(const __grid_constant__ CombineParams params) {
  const SplitParams& c = params.split;
  const Sizes& p = c.sizes;
  const SplitLayout& x = c.layout;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t num_rows = p.batch * p.num_kv_heads * x.rows;
  const std::int64_t step = std::int64_t{kCombineWarps} * gridDim.x;
  for (std::int64_t i = kCombineWarps * std::int64_t{blockIdx.x} + warp; i < num_rows; i += step) {
    const std::int64_t head_idx = i / x.rows, row = i % x.rows;
    const std::int64_t batch_idx = head_idx / p.num_kv_heads, group = c.rule.group;
    const Sequence sequence = sequence_with_used_keys(p, c.lengths, c.used_keys, batch_idx, false);
    const SplitPlan plan = plan_splits(c.rule, params.tile, sequence.seqlen_q, sequence.seqlen_k);
    if (plan.num_splits < 2 || row >= sequence.seqlen_q * group) continue;
    const int dim = static_cast<int>(x.row_floats) - 4;
    const float* first = c.o_partial + (head_idx * x.max_splits * x.rows + row) * x.row_floats;
    const std::int64_t next = x.rows * x.row_floats;  // the same row of the next split
    const auto stats_of = [&](std::int64_t s) {
      return *reinterpret_cast<const float4*>(first + s * next + dim);
    };
    float top = -HUGE_VALF, max_score = -HUGE_VALF;
    for (std::int64_t s = 0; s < plan.num_splits; ++s) {
      const auto [row_max_ref, sum, split_max, unused] = stats_of(s);
      if (sum == 0.0f) continue;
      top = fmaxf(top, row_max_ref);
      max_score = fmaxf(max_score, split_max);
    }
    // Weight of a split: its sum relative to the common maximum; 0 if the split is empty. If
    // every row_max_ref is -inf, scores that differ at all differ by more than exp2 can represent.
    const auto weight_of = [&](std::int64_t s) {
      const auto [row_max_ref, sum, split_max, unused] = stats_of(s);
      if (sum == 0.0f) return 0.0f;
      if (top == -HUGE_VALF) return split_max == max_score ? sum : 0.0f;
      return sum * exp2f(row_max_ref - top);
    };
    float sum = 0.0f;
    for (std::int64_t s = 0; s < plan.num_splits; ++s) sum += weight_of(s);
    const std::int64_t head = head_idx % p.num_kv_heads * group + row % group;
    const std::int64_t q_row = sequence.row_q + row / group;
    const RowEpilogue end =
        row_epilogue(c.rows.sinks, params.keep_factor, head, top, sum, max_score);
    if (lane == 0) store_lse(c.rows.lse, batch_idx, head, q_row, end.lse);
    T* out = static_cast<T*>(c.out.data) + row_offset(c.out, batch_idx, q_row, head);
    for (int column = lane; column < p.head_dim_v; column += 32) {
      float value = 0.0f;
      for (std::int64_t s = 0; s < plan.num_splits; ++s)
        if (const float weight = weight_of(s) * end.factor; weight != 0.0f)
          value = fmaf(first[s * next + column], weight, value);
      store_real(out, column, value + 0.0f);
    }
  }
}

}  // namespace headrace::cuda::sm80::fwd
