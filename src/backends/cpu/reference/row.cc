#include "backends/cpu/reference/row.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/dtype.h"
#include "core/key_row.h"
#include "core/philox.h"
#include "core/quantise.h"

namespace headrace::cpu::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double load(const Problem& p, const Operand& x, std::int64_t offset) {
  return load_as_double(dtype_of(p), x.data, offset);
}

double element(const KeyRow& row, std::int64_t d) {
  const double x = load_as_double(row.dtype, row.data, row.offset + d);
  if (row.scales.words == nullptr) return double{row.scale} * x;
  const auto [step, zero] = unpack_scale(row.scales.words[d / row.scales.channels]);
  return double{zero} + double{step} * x;
}

// K or V of one key in the form that the query sees.
KeyRow row_of_key(const Problem& p, const AttentionArgs& args, const Sequence& sequence,
                  std::int64_t batch_idx, std::int64_t head, std::int64_t q_idx, std::int64_t k_idx,
                  bool is_of_k) {
  const std::int64_t position = q_idx + sequence.seqlen_k - sequence.seqlen_q;
  return key_row(p, args, sequence, batch_idx, head / group_size(p), position, k_idx, is_of_k);
}

// Element offset in an operand shaped like the scores. In a ragged batch the query axis counts
// packed rows.
std::int64_t score_offset(const ScoreOperand& x, const Sequence& sequence, std::int64_t batch_idx,
                          std::int64_t head, std::int64_t q_idx, std::int64_t k_idx) {
  return batch_idx * x.stride_batch + head * x.stride_head + (sequence.row_q + q_idx) * x.stride_q +
         k_idx * x.stride_k;
}

// score = softcap(scale * q.k) + ALiBi + bias, for a visible key. `magnitude` receives |scale| *
// sum |q||k|.
double score_of(const Problem& p, const AttentionArgs& args, const Sequence& sequence,
                std::int64_t batch_idx, std::int64_t head, std::int64_t q_idx, std::int64_t k_idx,
                double& magnitude) {
  const std::int64_t q = row_offset(args.q, batch_idx, sequence.row_q + q_idx, head);
  const KeyRow k = row_of_key(p, args, sequence, batch_idx, head, q_idx, k_idx, true);
  double dot = 0, absolute = 0;
  for (std::int64_t d = 0; d < p.head_dim; ++d) {
    const double product = load(p, args.q, q + d) * element(k, d);
    dot += product;
    absolute += std::abs(product);
  }
  magnitude = std::abs(p.softmax_scale) * absolute;
  double score = p.softmax_scale * dot;
  if (has_softcap(p)) score = p.softcap * std::tanh(score / p.softcap);
  if (p.has_alibi) {
    const double slope =
        args.alibi_slopes[batch_idx * args.alibi_stride_batch + head * args.alibi_stride_head];
    const std::int64_t diagonal = q_idx + diagonal_shift(p, sequence.seqlen_q, sequence.seqlen_k);
    score -= slope * std::abs(static_cast<double>(diagonal - k_idx));
  }
  if (args.bias.data != nullptr)
    score += load_as_double(args.bias.dtype, args.bias.data,
                            score_offset(args.bias, sequence, batch_idx, head, q_idx, k_idx));
  return score;
}

// Softmax over the visible scores, with the sink as an additional term of the denominator.
void normalise(const Problem& p, const AttentionArgs& args, std::int64_t head, Row& row) {
  double top = -kInfinity;
  for (const double score : row.scores) top = std::max(top, score);
  // std::max() drops a NaN in the second argument: check for it, it makes the whole row NaN.
  for (const double score : row.scores)
    if (std::isnan(score)) top = score;
  row.is_empty = top == -kInfinity;
  row.lse = -kInfinity;
  if (row.is_empty) return;
  const double sink = p.has_sinks ? args.sinks[head * args.sinks_stride] : -kInfinity;
  const double reference = sink > top ? sink : top;
  double denominator = 0;
  for (std::size_t j = 0; j < row.scores.size(); ++j) {
    // A score equal to an infinite maximum is inf - inf = NaN, as for every +inf score. -inf has
    // weight 0.
    if (row.scores[j] != -kInfinity) row.softmax[j] = std::exp(row.scores[j] - reference);
    denominator += row.softmax[j];
  }
  if (p.has_sinks && sink != -kInfinity)
    denominator += sink == reference ? 1.0 : std::exp(sink - reference);
  for (double& weight : row.softmax) weight /= denominator;
  row.lse = reference + std::log(denominator);
}

}  // namespace

bool is_visible(const Problem& p, const AttentionArgs& args, const Sequence& sequence,
                std::int64_t batch_idx, std::int64_t head, std::int64_t q_idx, std::int64_t k_idx) {
  const KeyRange keys = visible_keys(p, q_idx, sequence.seqlen_q, sequence.seqlen_k);
  if (k_idx < keys.begin || k_idx >= keys.end) return false;
  if (args.mask.data != nullptr &&
      static_cast<const std::uint8_t*>(
          args.mask.data)[score_offset(args.mask, sequence, batch_idx, head, q_idx, k_idx)] == 0)
    return false;
  if (p.has_tree_mask) {
    const std::uint32_t* words = args.tree_mask + batch_idx * args.tree_stride_batch +
                                 (sequence.row_q + q_idx) * args.tree_stride_q;
    const std::int64_t bit = k_idx - (sequence.seqlen_k - sequence.seqlen_q);
    if (bit >= 0 && (words[bit / 32] >> (bit % 32) & 1u) == 0) return false;
  }
  return true;
}

bool is_kept(const Problem& p, const AttentionArgs& args, std::int64_t batch_idx, std::int64_t head,
             std::int64_t q_idx, std::int64_t k_idx) {
  const DropoutRow random{.seed = args.dropout_seed,
                          .offset = args.dropout_offset,
                          .batch_head = static_cast<std::uint32_t>(batch_idx * p.num_heads + head),
                          .query = static_cast<std::uint32_t>(q_idx)};
  return random.bits16(k_idx) < dropout_keep_threshold(p.dropout_p);
}

double keep_factor(const Problem& p) { return 65536.0 / dropout_keep_threshold(p.dropout_p); }

double softcap_slope(double x) {
  const double e = std::exp(-2 * std::abs(x));
  return 4 * e / ((1 + e) * (1 + e));
}

void attention_row(const Problem& p, const AttentionArgs& args, const Sequence& sequence,
                   std::int64_t batch_idx, std::int64_t head, std::int64_t q_idx, Row& row) {
  const auto seqlen_k = static_cast<std::size_t>(sequence.seqlen_k);
  row.scores.assign(seqlen_k, -kInfinity);
  row.softmax.assign(seqlen_k, 0.0);
  row.out.assign(static_cast<std::size_t>(p.head_dim_v), 0.0);
  row.abs_out.assign(static_cast<std::size_t>(p.head_dim_v), 0.0);
  row.score_magnitude = 0;
  row.num_visible = 0;
  for (std::int64_t j = 0; j < sequence.seqlen_k; ++j) {
    if (!is_visible(p, args, sequence, batch_idx, head, q_idx, j)) continue;
    double magnitude = 0;
    row.scores[static_cast<std::size_t>(j)] =
        score_of(p, args, sequence, batch_idx, head, q_idx, j, magnitude);
    row.score_magnitude = std::max(row.score_magnitude, magnitude);
    ++row.num_visible;
  }
  normalise(p, args, head, row);
  row.probs = row.softmax;
  if (row.is_empty) return;
  for (std::int64_t j = 0; j < sequence.seqlen_k; ++j) {
    // Invisible keys are skipped, so that NaN in their V does not propagate.
    if (!is_visible(p, args, sequence, batch_idx, head, q_idx, j)) continue;
    double& weight = row.probs[static_cast<std::size_t>(j)];
    if (has_dropout(p))
      weight *= is_kept(p, args, batch_idx, head, q_idx, j) ? keep_factor(p) : 0.0;
    const KeyRow v = row_of_key(p, args, sequence, batch_idx, head, q_idx, j, false);
    for (std::int64_t d = 0; d < p.head_dim_v; ++d) {
      const double term = weight * element(v, d);
      row.out[static_cast<std::size_t>(d)] += term;
      row.abs_out[static_cast<std::size_t>(d)] += std::abs(term);
    }
  }
}

}  // namespace headrace::cpu::reference
