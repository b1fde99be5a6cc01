// The end of a row: it is scaled and stored.
#pragma once

#include <cmath>

#include "backends/cpu/attention/flash/softmax-inl.h"

namespace headrace::cpu::flash {

template <class Vec>
inline bool is_finite(const float* x, int64_t num_floats) {
  auto sum = Vec::zero();  // 0 * infinity and 0 * NaN are NaN
  for (int64_t c = 0; c < num_floats; c += Vec::kWidth)
    sum = Vec::fma(Vec::load(x + c), Vec::zero(), sum);
  return Vec::sum(sum) == 0.0f;
}

// The sink is an additional term of the denominator: log(exp(lse) + exp(sink)), relative to the
// larger of both.
inline void add_sink(double sink, double& lse, double& share) {
  const double top = sink > lse ? sink : lse;
  const double keys = lse == top ? 1.0 : std::exp(lse - top);
  const double both = keys + (sink == top ? 1.0 : std::exp(sink - top));
  share = keys / both;
  lse = top + std::log(both);
}

// out [head_dim_v] = o_row * normaliser * share; zeros if o_row is null. One product after the
// other: a row with one split then has the bits of one whose other splits are empty.
template <class Vec, class E>
inline void store_scaled(const float* o_row, int64_t head_dim_v, float normaliser, float share,
                         E* out) {
  for (int64_t c = 0; c < head_dim_v; c += Vec::kWidth) {
    // Adding +0 turns -0 into +0, so that the sign does not depend on the order of underflows.
    auto x = Vec::zero();
    if (o_row != nullptr) {
      x = Vec::mul(Vec::load(o_row + c), Vec::set1(normaliser));
      x = Vec::add(Vec::mul(x, Vec::set1(share)), Vec::zero());
    }
    const int64_t left = head_dim_v - c;
    if (left >= Vec::kWidth) {
      Vec::store(out + c, x);
    } else {
      Vec::store_partial(out + c, x, static_cast<int>(left));
    }
  }
}

// Finishes a row: adds the sink, scales, rounds to the dtype. o_row * normaliser is softmax times
// V; row_sum is the sum of exp(s - row_maximum) over all keys.
template <class Vec, class E>
inline void store_result(const Problem& p, const AttentionArgs& args, const RowId& id,
                         const float* o_row, float normaliser, double row_maximum, double row_sum) {
  const int64_t row = id.sequence.row_q + id.q_idx;
  E* out = static_cast<E*>(args.out.data) + row_offset(args.out, id.batch_idx, row, id.head);
  double lse = -std::numeric_limits<double>::infinity();
  double share = 1.0;    // weight of the keys; the rest is the sink's
  if (row_sum == 0.0) {  // no visible key, or every score is -inf: the row is empty
    o_row = nullptr;
  } else {
    // Nothing else reads lse, and with few keys the logarithm of each row counts.
    if (p.has_sinks || args.lse.data != nullptr) lse = row_maximum + std::log(row_sum);
    if (p.has_sinks) add_sink(args.sinks[id.head * args.sinks_stride], lse, share);
    if (has_dropout(p)) share *= 65536.0 / dropout_keep_threshold(p.dropout_p);
  }
  store_scaled<Vec>(o_row, p.head_dim_v, normaliser, static_cast<float>(share), out);
  if (args.lse.data == nullptr) return;
  const LseOperand& to = args.lse;
  static_cast<float*>(
      to.data)[id.batch_idx * to.stride_batch + id.head * to.stride_head + row * to.stride_q] =
      static_cast<float>(lse);
}

}  // namespace headrace::cpu::flash
