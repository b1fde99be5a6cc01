#include "support/low_precision.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/dtype.h"

namespace headrace::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float load(DType dtype, const void* data, std::int64_t idx) {
  return static_cast<float>(load_as_double(dtype, data, idx));
}

float dot(const RowRef& r, std::int64_t key) {
  const Problem& p = *r.problem;
  const AttentionArgs& a = *r.args;
  const std::int64_t q = row_offset(a.q, r.batch_idx, r.sequence.row_q + r.q_idx, r.head);
  const std::int64_t k =
      key_offset(p, a.paged, a.k, r.sequence, r.batch_idx, key, r.head / group_size(p));
  float sum = 0;
  for (std::int64_t d = 0; d < p.head_dim; ++d)
    sum += load(dtype_of(p), a.q.data, q + d) * load(dtype_of(p), a.k.data, k + d);
  return sum;
}

// ALiBi and bias of a key.
float added(const RowRef& r, std::int64_t key) {
  const Problem& p = *r.problem;
  const AttentionArgs& a = *r.args;
  float sum = 0;
  if (p.has_alibi) {
    const float slope =
        a.alibi_slopes[r.batch_idx * a.alibi_stride_batch + r.head * a.alibi_stride_head];
    const std::int64_t diagonal =
        r.q_idx + diagonal_shift(p, r.sequence.seqlen_q, r.sequence.seqlen_k);
    sum -= slope * static_cast<float>(std::abs(diagonal - key));
  }
  if (a.bias.data != nullptr)
    sum += load(a.bias.dtype, a.bias.data,
                r.batch_idx * a.bias.stride_batch + r.head * a.bias.stride_head +
                    (r.sequence.row_q + r.q_idx) * a.bias.stride_q + key * a.bias.stride_k);
  return sum;
}

float score(const RowRef& r, std::int64_t key) {
  const Problem& p = *r.problem;
  float x = dot(r, key) * static_cast<float>(p.softmax_scale);
  if (has_softcap(p)) {
    const auto cap = static_cast<float>(p.softcap);
    x = cap * std::tanh(x / cap);
  }
  return rounded_to(dtype_of(p), x + added(r, key));
}

}  // namespace

float rounded_to(DType dtype, float value) {
  if (dtype == DType::f16) return float_from_f16(f16_from_float(value));
  if (dtype == DType::bf16) return float_from_bf16(bf16_from_float(value));
  return value;
}

std::vector<float> low_precision_softmax(const RowRef& ref, const cpu::reference::Row& exact) {
  const Problem& p = *ref.problem;
  const AttentionArgs& a = *ref.args;
  const auto count = static_cast<std::size_t>(ref.sequence.seqlen_k);
  std::vector<float> weight(count, -kInfinity);
  float top = -kInfinity, sum = 0;
  for (std::size_t j = 0; j < count; ++j) {
    if (exact.scores[j] == -std::numeric_limits<double>::infinity()) continue;
    weight[j] = score(ref, static_cast<std::int64_t>(j));
    top = std::max(top, weight[j]);
  }
  const float sink = p.has_sinks ? a.sinks[ref.head * a.sinks_stride] : -kInfinity;
  const float reference = std::max(top, sink);
  for (float& w : weight) sum += w = w == -kInfinity ? 0.0f : std::exp(w - reference);
  if (p.has_sinks) sum += std::exp(sink - reference);
  for (float& w : weight) w /= sum;
  return weight;
}

void low_precision_row(const RowRef& ref, const cpu::reference::Row& exact,
                       std::vector<double>& out) {
  const Problem& p = *ref.problem;
  const AttentionArgs& a = *ref.args;
  const std::vector<float> softmax = low_precision_softmax(ref, exact);
  std::vector<float> total(static_cast<std::size_t>(p.head_dim_v), 0.0f);
  for (std::size_t j = 0; j < softmax.size(); ++j) {
    const auto key = static_cast<std::int64_t>(j);
    if (softmax[j] == 0.0f) continue;
    float prob = softmax[j];
    if (has_dropout(p)) {
      const bool is_kept = cpu::reference::is_kept(p, a, ref.batch_idx, ref.head, ref.q_idx, key);
      prob *= is_kept ? static_cast<float>(cpu::reference::keep_factor(p)) : 0.0f;
    }
    prob = rounded_to(dtype_of(p), prob);
    const std::int64_t v =
        key_offset(p, a.paged, a.v, ref.sequence, ref.batch_idx, key, ref.head / group_size(p));
    for (std::size_t d = 0; d < total.size(); ++d)
      total[d] += prob * load(dtype_of(p), a.v.data, v + static_cast<std::int64_t>(d));
  }
  out.resize(total.size());
  for (std::size_t d = 0; d < total.size(); ++d) out[d] = rounded_to(dtype_of(p), total[d]);
}

}  // namespace headrace::testing
