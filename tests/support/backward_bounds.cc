#include <algorithm>
#include <cmath>
#include <limits>

#include "core/dtype.h"
#include "support/backward_rules.h"

namespace headrace::testing {
namespace {

using cpu::reference::Row;

constexpr double kE32 = 0x1p-24;
constexpr double kFlushed = 0x1p-125;  // two flushes of up to 2^-126: of a product and of its sum

// One row's contribution to the bounds and to the straightforward results.
//
// With ds the error of a score (rules.cc), float arithmetic gives
//   P = exp(s - lse)     relative  r = exp(ds + (|s| + 2 |lse| + 3) e32) - 1   (lse is a float)
//   D = rowsum(dO O)     absolute  ((dim_v + 2) e32 + u_out) sum |dO||O|  + 2 e32 (|D| + |dlse|)
//   dP                   absolute  (dim_v + 3) e32 sum |dO||V|
//   dS = P (dP - D)      absolute  |dS| (r + 3 e32) + P (1 + r) (error of dP + error of D)
//   slope 1 - tanh^2     absolute  16 e32 + 2 ds / c
// and each sum over n terms adds n e32 of their magnitudes. Values below 2^-126 may be flushed to
// 0: results, and with bf16 (VDPBF16PS) P, dS, and the products and sums in every step of a sum.
//
// Tensor cores and bf16 pairs: P and dS are rounded to the dtype of the inputs, by u and at least a
// denormal. Products of floats (3xTF32) are off by kSplitProduct e32. The exponential is off by
// 2 ulp; its argument in log2 has three more roundings of s and two of the lse.
class BoundOfRows {
 public:
  BoundOfRows(const Problem& p, const AttentionArgs& args, double largest_v, bool with_tensor_cores,
              ExpectedGradients& g)
      : p_(p),
        args_(args),
        largest_v_(largest_v),
        g_(g),
        is_16_bit_(dtype_of(p) == DType::f16 || dtype_of(p) == DType::bf16),
        rows_q_(p.is_ragged ? p.total_q : p.seqlen_q),
        rows_k_(p.is_ragged ? p.total_k : p.seqlen_k) {
    for (Gradients* x : {&sums_, &g_.low_precision[0], &g_.low_precision[1], &g_.from_stored})
      *x = zeros_like(g_.exact);
    g_.largest_sum.assign(g_.exact.dq.size() / static_cast<std::size_t>(p.head_dim), 0.0);
    kinds_.reserve(kNumProducts);
    add_kind(Products::floats);
    if (with_tensor_cores) add_tensor_kinds();
  }

  void run() {
    for (std::int64_t b = 0; b < p_.batch; ++b) {
      const Sequence sequence = sequence_of(p_, args_, b);
      for (std::int64_t h = 0; h < p_.num_heads; ++h) {
        if (h % group_size(p_) == 0) read_keys(sequence, b, h / group_size(p_));
        for (std::int64_t i = 0; i < sequence.seqlen_q; ++i)
          add_row({&p_, &args_, sequence, b, h, i});
      }
    }
    finish();
  }

 private:
  static constexpr int kSplitProduct = 8;

  void add_tensor_kinds() {
    Kind& kind = add_kind(Products::tensor_cores);
    if (!is_16_bit_) {
      kind.product_error = kSplitProduct;
      return;
    }
    const DType dtype = dtype_of(p_);
    kind.roundoff = unit_roundoff(dtype);
    kind.flushed = dtype == DType::bf16 ? kFlushed : 0;
    kind.denormal = std::max(smallest_denormal(dtype), kind.flushed);
    Kind& rounded = add_kind(Products::tensor_cores_rounded_p);
    rounded.roundoff = rounded.weight_roundoff = kind.roundoff;
    rounded.denormal = kind.denormal;
    rounded.flushed = kind.flushed;
    // f16 stores 2^14 P, which keeps the digits of small values.
    rounded.weight_denormal = kind.denormal * (dtype == DType::f16 ? 0x1p-14 : 1);
  }

  // dS of a pair in each of the straightforward computations.
  using Straightforward = std::array<float, kNumStraightforward>;
  // An arithmetic, from which a bound follows.
  struct Kind {
    Gradients* bound;
    int product_error = 0;              // error of a product of two elements, in units of e32
    double roundoff = 0, denormal = 0;  // of P and dS
    double flushed = 0;                 // per step of a sum
    double weight_roundoff = 0, weight_denormal = 0;  // of P, if dS is computed from the rounded P
    double score_error = 0;                           // of this row
  };
  Kind& add_kind(Products products) {
    Gradients& bound = g_.bounds[static_cast<std::size_t>(products)];
    bound = zeros_like(g_.exact);
    kinds_.push_back({.bound = &bound});
    return kinds_.back();
  }
  // Relative error of P = exp(x - lse).
  static double prob_error(const Kind& kind, double score_error, double x, double lse) {
    const bool is_tensor = kind.product_error > 0 || kind.roundoff > 0;
    const double roundings =
        is_tensor ? 4 * std::abs(x) + 4 * std::abs(lse) + 8 : std::abs(x) + 2 * std::abs(lse) + 3;
    return std::expm1(score_error + roundings * kE32);
  }

  static Gradients zeros_like(const Gradients& g) {
    Gradients z = g;
    for (auto* x : {&z.dq, &z.dk, &z.dv, &z.dbias, &z.dsinks}) std::fill(x->begin(), x->end(), 0);
    return z;
  }

  double load(const Operand& x, std::int64_t offset) const {
    return load_as_double(dtype_of(p_), x.data, offset);
  }
  void read(const Operand& x, std::int64_t offset, std::int64_t dim, double* to) const {
    for (std::int64_t c = 0; c < dim; ++c) to[c] = load(x, offset + c);
  }
  // Converts K and V to double once for all rows.
  void read_keys(const Sequence& sequence, std::int64_t b, std::int64_t kv_head) {
    k_.resize(static_cast<std::size_t>(sequence.seqlen_k * p_.head_dim));
    v_.resize(static_cast<std::size_t>(sequence.seqlen_k * p_.head_dim_v));
    for (std::int64_t j = 0; j < sequence.seqlen_k; ++j) {
      const std::int64_t row = sequence.row_k + j;
      read(args_.k, row_offset(args_.k, b, row, kv_head), p_.head_dim, &k_[at(j, p_.head_dim)]);
      read(args_.v, row_offset(args_.v, b, row, kv_head), p_.head_dim_v, &v_[at(j, p_.head_dim_v)]);
    }
    largest_of_k_ = largest_of(k_);
    largest_of_v_ = largest_of(v_);
  }
  static double largest_of(const std::vector<double>& x) {
    double largest = 0;
    for (const double value : x) largest = std::max(largest, std::abs(value));
    return largest;
  }
  static std::size_t at(std::int64_t row, std::int64_t dim) {
    return static_cast<std::size_t>(row * dim);
  }
  const double* k_of(std::size_t j) const { return &k_[j * static_cast<std::size_t>(p_.head_dim)]; }
  const double* v_of(std::size_t j) const {
    return &v_[j * static_cast<std::size_t>(p_.head_dim_v)];
  }
  float rounded(float x) const { return rounded_to(dtype_of(p_), x); }

  void add_row(const RowRef& ref) {
    cpu::reference::attention_row(p_, args_, ref.sequence, ref.batch_idx, ref.head, ref.q_idx,
                                  row_);
    // A sink of +inf takes all the weight: every P is 0, as in a row without keys.
    if (row_.is_empty || row_.lse == std::numeric_limits<double>::infinity()) return;
    ++g_.num_rows;
    for (Kind& kind : kinds_)
      kind.score_error =
          row_bound(ref, row_, {.product_error = kind.product_error}, largest_v_).score;
    g_.largest_score = std::max({g_.largest_score, row_.score_magnitude, std::abs(row_.lse)});
    q_.resize(static_cast<std::size_t>(p_.head_dim));
    read(args_.q, row_offset(args_.q, ref.batch_idx, ref.sequence.row_q + ref.q_idx, ref.head),
         p_.head_dim, q_.data());
    read_dout(ref);
    if (p_.has_sinks) add_sink(ref);
    if (is_16_bit_) softmax_ = low_precision_softmax(ref, row_);
    std::vector<double> dp(row_.probs.size()), abs_dp(row_.probs.size());
    for (std::size_t j = 0; j < dp.size(); ++j) {
      if (!sees(ref, j)) continue;
      read_dp(ref, j, dp[j], abs_dp[j]);
      add_element(ref, j, dp[j], abs_dp[j]);
    }
  }

  bool sees(const RowRef& ref, std::size_t j) const {
    return cpu::reference::is_visible(p_, args_, ref.sequence, ref.batch_idx, ref.head, ref.q_idx,
                                      static_cast<std::int64_t>(j));
  }

  void read_dout(const RowRef& ref) {
    const Operand& x = args_.gradients.dout;
    const std::int64_t at = row_offset(x, ref.batch_idx, ref.sequence.row_q + ref.q_idx, ref.head);
    dout_.resize(static_cast<std::size_t>(p_.head_dim_v));
    const std::int64_t out =
        row_offset(args_.out, ref.batch_idx, ref.sequence.row_q + ref.q_idx, ref.head);
    d_ = 0;
    stored_d_ = 0;
    pt_d_ = 0;
    double magnitude = 0, sum = 0;
    for (std::size_t c = 0; c < dout_.size(); ++c) {
      dout_[c] = load(x, at + static_cast<std::int64_t>(c));
      d_ += dout_[c] * row_.out[c];
      const double term = dout_[c] * load(args_.out, out + static_cast<std::int64_t>(c));
      stored_d_ += term;
      pt_d_ += static_cast<float>(term);
      magnitude += std::abs(dout_[c] * row_.out[c]);
      sum += std::abs(dout_[c]);
    }
    dlse_ = 0;
    if (const LseOperand& l = args_.gradients.dlse; l.data != nullptr)
      dlse_ = static_cast<const float*>(
          l.data)[ref.batch_idx * l.stride_batch + ref.head * l.stride_head +
                  (ref.sequence.row_q + ref.q_idx) * l.stride_q];
    const DType dtype = dtype_of(p_);
    d_error_ =
        ((static_cast<double>(p_.head_dim_v) + 2) * kE32 + unit_roundoff(dtype)) * magnitude +
        smallest_denormal(dtype) * sum + 2 * kE32 * (std::abs(d_) + std::abs(dlse_));
    // |dS| <= P (|dO| |V| + |D|), and P sums to at most 1.
    g_.largest_sum[q_first(ref) / static_cast<std::size_t>(p_.head_dim)] =
        (sum * largest_of_v_ + std::abs(stored_d_ - dlse_)) * largest_of_k_;
  }

  void add_sink(const RowRef& ref) {
    const double sink = args_.sinks[ref.head * args_.sinks_stride];
    if (!std::isfinite(sink)) return;
    const auto head = static_cast<std::size_t>(ref.head);
    const double prob = std::exp(sink - row_.lse);
    for (const Kind& kind : kinds_) {
      const double off = prob_error(kind, 0, sink, row_.lse);
      kind.bound->dsinks[head] +=
          prob * ((1 + off) * d_error_ + std::abs(dlse_ - d_) * (off + kE32));
    }
    for (Gradients& low : g_.low_precision) low.dsinks[head] += prob * (dlse_ - d_);
  }

  void read_dp(const RowRef& ref, std::size_t j, double& dp, double& magnitude) const {
    const double* v = v_of(j);
    for (std::size_t c = 0; c < dout_.size(); ++c) {
      const double term = dout_[c] * v[c];
      dp += term;
      magnitude += std::abs(term);
    }
    double kept = 1;
    if (has_dropout(p_))
      kept = cpu::reference::is_kept(p_, args_, ref.batch_idx, ref.head, ref.q_idx,
                                     static_cast<std::int64_t>(j))
                 ? cpu::reference::keep_factor(p_)
                 : 0;
    dp *= kept;
    magnitude *= kept;
  }

  std::int64_t k_row(const RowRef& ref, std::size_t j) const {
    return ref.sequence.row_k + static_cast<std::int64_t>(j);
  }

  // The slope of the softcap at inner_, the score before the softcap.
  double slope_of(std::size_t j) {
    if (!has_softcap(p_)) return 1;
    const double* k = k_of(j);
    double dot = 0;
    for (std::size_t c = 0; c < q_.size(); ++c) dot += q_[c] * k[c];
    inner_ = p_.softmax_scale * dot;
    return cpu::reference::softcap_slope(inner_ / p_.softcap);
  }

  void add_element(const RowRef& ref, std::size_t j, double dp, double abs_dp) {
    if (row_.scores[j] == -std::numeric_limits<double>::infinity()) return;  // P is 0
    ++g_.num_pairs;
    const double prob = row_.softmax[j];
    const double ds = prob * (dp + dlse_ - d_);
    const double slope = slope_of(j);
    for (const Kind& kind : kinds_) add_bounds(kind, ref, j, abs_dp, ds, slope);
    const float pt_p = is_16_bit_ ? rounded(softmax_[j]) : 0.0f;
    const auto float_dp = static_cast<float>(dp);
    Straightforward pt = {rounded(float_dp), float_dp};
    for (float& x : pt) x = rounded(pt_p * (x - pt_d_ + static_cast<float>(dlse_)));
    const double stored_ds = prob * (dp + dlse_ - stored_d_);
    if (p_.has_dbias) add_bias(bias_index(ref, j), ds, pt, stored_ds);
    if (has_softcap(p_)) {
      const float t =
          rounded(std::tanh(rounded(static_cast<float>(inner_)) / static_cast<float>(p_.softcap)));
      for (float& x : pt) x = rounded(x * (1 - t * t));
    }
    add_dq_dk(ref, j, ds * slope, pt, stored_ds * slope);
    add_dv(ref, j, pt_p);
  }

  void add_bounds(const Kind& kind, const RowRef& ref, std::size_t j, double abs_dp, double ds,
                  double slope) {
    const double prob = row_.softmax[j];
    const double off = prob_error(kind, kind.score_error, row_.scores[j], row_.lse);
    const double dp_error =
        (static_cast<double>(p_.head_dim_v) + 3 + kind.product_error) * kE32 * abs_dp +
        static_cast<double>(p_.head_dim_v) * kind.flushed;
    const double off_rounded = off + kind.weight_roundoff * (1 + off);
    double error = std::abs(ds) * (off_rounded + 3 * kE32) +
                   prob * (1 + off_rounded) * (dp_error + d_error_) +
                   (kFlushed + kind.weight_denormal) * (abs_dp + std::abs(d_) + std::abs(dlse_));
    if (p_.has_dbias) kind.bound->dbias[bias_index(ref, j)] += error;
    if (has_softcap(p_))
      error = error * slope + std::abs(ds) * (16 * kE32 + 2 * kind.score_error / p_.softcap);
    const double lost = kind.roundoff + kind.product_error * kE32;
    error += (std::abs(ds * slope) + error) * lost + kind.denormal;
    const double scale = std::abs(p_.softmax_scale);
    const double* k = k_of(j);
    double* const dq = &kind.bound->dq[q_first(ref)];
    double* const dk = &kind.bound->dk[k_first(ref, j)];
    for (std::size_t c = 0; c < q_.size(); ++c) {
      dq[c] += scale * std::abs(k[c]) * error;
      dk[c] += scale * std::abs(q_[c]) * error;
    }
    const double weight_error =
        row_.probs[j] * (off + 2 * kE32 + lost * (1 + off)) + 2 * kind.denormal + kFlushed;
    double* const dv = &kind.bound->dv[v_first(ref, j)];
    for (std::size_t c = 0; c < dout_.size(); ++c) dv[c] += std::abs(dout_[c]) * weight_error;
  }

  // First element of the gradients of a row and of a key.
  std::int64_t packed(const RowRef& ref) const { return p_.is_ragged ? 0 : ref.batch_idx; }
  std::size_t q_first(const RowRef& ref) const {
    const std::int64_t row = packed(ref) * rows_q_ + ref.sequence.row_q + ref.q_idx;
    return static_cast<std::size_t>((row * p_.num_heads + ref.head) * p_.head_dim);
  }
  std::int64_t kv_index(const RowRef& ref, std::size_t j) const {
    return (packed(ref) * rows_k_ + k_row(ref, j)) * p_.num_kv_heads + ref.head / group_size(p_);
  }
  std::size_t k_first(const RowRef& ref, std::size_t j) const {
    return static_cast<std::size_t>(kv_index(ref, j) * p_.head_dim);
  }
  std::size_t v_first(const RowRef& ref, std::size_t j) const {
    return static_cast<std::size_t>(kv_index(ref, j) * p_.head_dim_v);
  }
  std::size_t bias_index(const RowRef& ref, std::size_t j) const {
    const auto& n = g_.exact.dbias_shape;
    const auto along = [](std::int64_t size, std::int64_t idx) { return size == 1 ? 0 : idx; };
    const std::int64_t row = (along(n[0], packed(ref)) * n[1] + along(n[1], ref.head)) * n[2] +
                             along(n[2], ref.sequence.row_q + ref.q_idx);
    return static_cast<std::size_t>(row * n[3] + along(n[3], static_cast<std::int64_t>(j)));
  }

  void add_bias(std::size_t at, double ds, const Straightforward& pt, double stored) {
    sums_.dbias[at] += std::abs(ds);
    for (std::size_t k = 0; k < pt.size(); ++k) g_.low_precision[k].dbias[at] += double{pt[k]};
    g_.from_stored.dbias[at] += stored;
  }

  void add_dq_dk(const RowRef& ref, std::size_t j, double ds, const Straightforward& pt,
                 double stored) {
    const double scale = p_.softmax_scale;
    const auto add = [&](std::size_t first, const double* with,
                         std::vector<double> Gradients::*to) {
      for (std::size_t c = 0; c < q_.size(); ++c) {
        (sums_.*to)[first + c] += std::abs(scale * with[c] * ds);
        for (std::size_t k = 0; k < pt.size(); ++k)
          (g_.low_precision[k].*to)[first + c] += scale * with[c] * double{pt[k]};
        (g_.from_stored.*to)[first + c] += scale * with[c] * stored;
      }
    };
    add(q_first(ref), k_of(j), &Gradients::dq);
    add(k_first(ref, j), q_.data(), &Gradients::dk);
  }

  void add_dv(const RowRef& ref, std::size_t j, float pt_p) {
    const std::size_t first = v_first(ref, j);
    float pt = 0;
    if (is_16_bit_ && row_.probs[j] != 0)
      pt = rounded(pt_p *
                   (has_dropout(p_) ? static_cast<float>(cpu::reference::keep_factor(p_)) : 1.0f));
    for (std::size_t c = 0; c < dout_.size(); ++c) {
      sums_.dv[first + c] += std::abs(dout_[c]) * row_.probs[j];
      for (Gradients& low : g_.low_precision) low.dv[first + c] += double{pt} * dout_[c];
    }
  }

  // Adds the roundings of the sums and their flushed denormals; rounds the straightforward results.
  void finish() {
    const double keys = static_cast<double>(p_.seqlen_k) + 3;
    const double rows = static_cast<double>(p_.seqlen_q * group_size(p_)) + 3;
    const double all = static_cast<double>(p_.batch * p_.num_heads) * (rows + keys) + keys * rows;
    for (const Kind& kind : kinds_) {
      const auto add = [&](std::vector<double>& bound, const std::vector<double>& sums,
                           double terms) {
        for (std::size_t i = 0; i < bound.size(); ++i)
          if (bound[i] > 0) bound[i] += terms * (kE32 * sums[i] + kind.flushed) + kFlushed;
      };
      add(kind.bound->dq, sums_.dq, keys);
      add(kind.bound->dk, sums_.dk, rows);
      add(kind.bound->dv, sums_.dv, rows);
      add(kind.bound->dbias, sums_.dbias, std::min(all, 1e6));
    }
    g_.from_stored.dv = g_.exact.dv;
    g_.from_stored.dsinks = g_.exact.dsinks;
    const auto round_all = [](DType dtype, std::vector<double>& x) {
      for (double& value : x) value = rounded_to(dtype, static_cast<float>(value));
    };
    for (Gradients& low : g_.low_precision) {
      for (auto* x : {&low.dq, &low.dk, &low.dv}) round_all(dtype_of(p_), *x);
      round_all(args_.bias.dtype, low.dbias);
    }
  }

  const Problem& p_;
  const AttentionArgs& args_;
  double largest_v_;
  ExpectedGradients& g_;
  Gradients sums_;  // sums of the magnitudes of the terms
  const bool is_16_bit_;
  const std::int64_t rows_q_, rows_k_;
  Row row_;
  std::vector<float> softmax_;
  std::vector<double> q_, dout_;  // of the row
  std::vector<double> k_, v_;     // of the KV head: [seqlen_k, head_dim], [seqlen_k, head_dim_v]
  float pt_d_ = 0;
  double stored_d_ = 0;
  double inner_ = 0;
  double d_ = 0, d_error_ = 0, dlse_ = 0;
  double largest_of_k_ = 0, largest_of_v_ = 0;  // of the KV head
  std::vector<Kind> kinds_;
};

}  // namespace

ExpectedGradients expected_gradients(const Problem& p, const AttentionArgs& args, double largest_v,
                                     bool with_tensor_cores) {
  ExpectedGradients g;
  g.dtype = dtype_of(p);
  g.softmax_scale = p.softmax_scale;
  g.exact = cpu::reference::attention_backward(p, args);
  BoundOfRows(p, args, largest_v, with_tensor_cores, g).run();
  return g;
}

}  // namespace headrace::testing
