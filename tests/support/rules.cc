#include "support/rules.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/math.h"
#include "core/dtype.h"

namespace headrace::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kE32 = 0x1p-24;  // unit roundoff of float
constexpr double kBlockRoundings = 4;

double round_to(DType dtype, double value) {
  std::uint64_t bits = 0;
  store_from_double(dtype, &bits, 0, value);
  return load_as_double(dtype, &bits, 0);
}

// Largest distance of a visible key from the diagonal.
double largest_distance(const RowRef& r) {
  const KeyRange keys = visible_keys(*r.problem, r.q_idx, r.sequence.seqlen_q, r.sequence.seqlen_k);
  const std::int64_t diagonal =
      r.q_idx + diagonal_shift(*r.problem, r.sequence.seqlen_q, r.sequence.seqlen_k);
  return static_cast<double>(
      std::max(std::abs(keys.begin - diagonal), std::abs(keys.end - 1 - diagonal)));
}

// Error of a score s = softcap(scale * q.k) + alibi + bias in float arithmetic, M = |scale| sum
// |q||k|:
//   dot product: d products and sums of at most M / |scale| each         d * e32 * M
//   scale as a float, the product with it, the argument of exp           3 * e32 * M
//   softcap c * tanh(x / c), whose slope is at most 1: 1 / c and the product with it are off by 2
//   e32 |x|, tanh and the last product by 8 e32 of a value below C = min(M, c)
//                                                                        2 * e32 * M + 8 * e32 * C
//   ALiBi and bias: one rounding each, of at most C + |alibi| (+ |bias|). |bias| is bounded by
//   |s| + C + |alibi|.
//   products with larger errors (3xTF32)                                 product_error * e32 * M
double score_error(const RowRef& r, const cpu::reference::Row& exact, int product_error) {
  const Problem& p = *r.problem;
  const double magnitude = exact.score_magnitude;
  double error = (static_cast<double>(p.head_dim) + 3 + product_error) * magnitude;
  double size = magnitude;
  if (has_softcap(p)) {
    size = std::min(magnitude, p.softcap);
    error += 2 * magnitude + 8 * size;
  }
  if (p.has_alibi) {
    const double slope = r.args->alibi_slopes[r.batch_idx * r.args->alibi_stride_batch +
                                              r.head * r.args->alibi_stride_head];
    size += std::abs(slope) * largest_distance(r);
    error += size;
  }
  if (has_bias(p)) {
    double largest = 0;
    for (const double score : exact.scores)
      if (std::isfinite(score)) largest = std::max(largest, std::abs(score));
    error += std::max(size, largest) + size;
  }
  return error * kE32;
}

}  // namespace

double unit_roundoff(DType dtype) {
  return dtype == DType::f16 ? 0x1p-11 : dtype == DType::bf16 ? 0x1p-8 : kE32;
}

double smallest_denormal(DType dtype) {
  return dtype == DType::f16 ? 0x1p-24 : dtype == DType::bf16 ? 0x1p-133 : 0x1p-149;
}

double ulp_at(DType dtype, double value) {
  if (value == 0 || !std::isfinite(value)) return smallest_denormal(dtype);
  const double step = std::ldexp(2 * unit_roundoff(dtype), std::ilogb(value));
  return std::max(step, smallest_denormal(dtype));
}

bool is_score_below_format(double largest_score, DType dtype) {
  return 4 * kE32 * largest_score <= unit_roundoff(dtype);
}

// Expected mean square error of a score in float arithmetic: partial sums of the dot product grow
// to the score s (weighted by the softmax) with a random part of M / sqrt(head_dim) per step, and
// each of the head_dim steps rounds the partial sum once, by e32 / sqrt(3) on average.
double expected_score_error2(const RowRef& ref, const cpu::reference::Row& exact) {
  double score2 = 0;
  for (std::size_t j = 0; j < exact.scores.size(); ++j)
    if (exact.softmax[j] > 0) score2 += exact.softmax[j] * exact.scores[j] * exact.scores[j];
  const double magnitude2 = exact.score_magnitude * exact.score_magnitude;
  return kE32 * kE32 / 3 *
         (static_cast<double>(ref.problem->head_dim) * score2 / 3 + magnitude2 / 2);
}

// Error of P if it is rounded before P V: half an ulp, and the loss of denormals. Kernels keep P in
// f16 in units of 2^-15.
double prob_roundoff(DType dtype) { return dtype == DType::f32 ? 0 : unit_roundoff(dtype); }
double prob_underflow(DType dtype) { return dtype == DType::f16 ? 0x1p-40 : 0; }

double RowBound::rounding(double exact) const {
  return unit_roundoff(dtype) * std::abs(exact) + smallest_denormal(dtype);
}

// out = sum p v with p = exp(s - m) / sum exp(s - m):
//   each exp is off by a factor within exp(+-ds), and so is their sum       exp(2 ds) - 1
//   rounding of P, products of P and V (3xTF32)                             u_P + product_error *
//   e32 rescaling by exp(old m - new m), a constant number of roundings per block and of |m|
//                                                                           c * (n_blk + |m|) * e32
//   summing over keys                                                       sk * e32
// and the result is rounded once. In addition, an exponential below 2^-126 may be flushed to 0, and
// a product loses what is below the smallest float.
RowBound row_bound(const RowRef& ref, const cpu::reference::Row& exact,
                   const Arithmetic& arithmetic, double largest_v) {
  RowBound bound;
  bound.dtype = dtype_of(*ref.problem);
  bound.score = score_error(ref, exact, arithmetic.product_error);
  double top = 0;
  if (!exact.is_empty) top = *std::max_element(exact.scores.begin(), exact.scores.end());
  const auto keys = static_cast<double>(ref.sequence.seqlen_k);
  const double blocks = static_cast<double>(
      ceil_div(std::max<std::int64_t>(ref.sequence.seqlen_k, 1), arithmetic.tile_keys) +
      arithmetic.num_splits);
  bound.weight =
      std::expm1(2 * bound.score) + prob_roundoff(arithmetic.prob_dtype) +
      (arithmetic.product_error + kBlockRoundings * (blocks + std::abs(top)) + keys) * kE32;
  bound.lse = bound.score + (keys + kBlockRoundings * (blocks + 1 + std::abs(exact.lse))) * kE32;
  bound.underflow =
      keys * ((0x1p-126 + prob_underflow(arithmetic.prob_dtype)) * largest_v * 2 + 0x1p-149);
  return bound;
}

void Judge::fail(const RowRef& ref, const std::string& text) {
  if (verdict_.failures.size() < 5)
    verdict_.failures.push_back(format_text("{} in row (batch {}, head {}, query {})", text,
                                            ref.batch_idx, ref.head, ref.q_idx));
}

// R5. True if the values can be compared by the other rules.
bool Judge::check_class(const RowRef& ref, const cpu::reference::Row& exact, const RowResult& got) {
  bool is_finite = true;
  for (std::size_t d = 0; d < got.out.size(); ++d) {
    const double expected = round_to(dtype_of(problem_), exact.out[d]);
    if (exact.is_empty && (got.out[d] != 0 || std::signbit(got.out[d])))
      fail(ref, format_text("R5 element {} is {} instead of +0", d, got.out[d]));
    const bool is_same_class = std::isnan(expected)   ? std::isnan(got.out[d])
                               : std::isinf(expected) ? got.out[d] == expected
                                                      : std::isfinite(got.out[d]);
    if (!is_same_class)
      fail(ref, format_text("R5 element {} is {} instead of {}", d, got.out[d], expected));
    is_finite = is_finite && std::isfinite(expected) && std::isfinite(got.out[d]);
  }
  if (!problem_.has_lse) return is_finite;
  const bool is_same = std::isnan(exact.lse)   ? std::isnan(got.lse)
                       : std::isinf(exact.lse) ? got.lse == exact.lse
                                               : std::isfinite(got.lse);
  if (!is_same) fail(ref, format_text("R5 lse is {} instead of {}", got.lse, exact.lse));
  return is_finite && is_same;
}

// R3.
void Judge::check_bounds(const RowRef& ref, const cpu::reference::Row& exact,
                         const RowResult& got) {
  const RowBound bound = row_bound(ref, exact, arithmetic_, largest_v_);
  // Per element: the errors of the scores and about four roundings of the terms p v.
  const double expected2 = expected_score_error2(ref, exact) + 16 * kE32 * kE32;
  const auto terms = static_cast<double>(std::max<std::int64_t>(exact.num_visible, 1));
  for (std::size_t d = 0; d < got.out.size(); ++d) {
    const double error = std::abs(got.out[d] - exact.out[d]);
    const double limit = bound.out(exact.out[d], exact.abs_out[d]);
    verdict_.utilisation = std::max(verdict_.utilisation, error / limit);
    const double before = bound.before_rounding(exact.abs_out[d]);
    if (before > 0)
      verdict_.calculation =
          std::max(verdict_.calculation, (error - bound.rounding(exact.out[d])) / before);
    if (!(error <= limit))
      fail(ref, format_text("R3 element {} is {}, exact {}: error {} exceeds the bound {}", d,
                            got.out[d], exact.out[d], error, limit));
    sum_error2_ += error * error;
    sum_exact2_ += exact.out[d] * exact.out[d];
    sum_expected_error2_ += expected2 * std::max(exact.abs_out[d] * exact.abs_out[d] / terms,
                                                 exact.out[d] * exact.out[d]);
    if (exact.out[d] == 0) ++num_zero_;
  }
  if (!problem_.has_lse || std::isinf(exact.lse)) return;  // R5 checks infinities
  const double error = std::abs(got.lse - exact.lse);
  verdict_.lse_utilisation = std::max(verdict_.lse_utilisation, error / bound.lse);
  if (!(error <= bound.lse))
    fail(ref, format_text("R3 lse is {}, exact {}: error {} exceeds the bound {}", got.lse,
                          exact.lse, error, bound.lse));
}

void Judge::add_errors(const cpu::reference::Row& exact, const RowResult& got,
                       const std::vector<double>& low_precision) {
  const DType dtype = dtype_of(problem_);
  if (!is_score_below_format(std::max(exact.score_magnitude, std::abs(exact.lse)), dtype)) return;
  for (std::size_t d = 0; d < got.out.size(); ++d) {
    const double error = std::abs(got.out[d] - exact.out[d]);
    const double pt_error = std::abs(low_precision[d] - exact.out[d]);
    const double ulp = ulp_at(dtype, exact.out[d]);
    is_pt_finite_ = is_pt_finite_ && std::isfinite(pt_error);
    verdict_.max_error = std::max(verdict_.max_error, error);
    verdict_.pt_max_error = std::max(verdict_.pt_max_error, pt_error);
    max_beyond_ulp_ = std::max(max_beyond_ulp_, error - ulp);
    max_ulp_ = std::max(max_ulp_, ulp);
    sum_error_ += error;
    sum_pt_error_ += pt_error;
    sum_rounding_ += std::abs(round_to(dtype, exact.out[d]) - exact.out[d]);
    ++num_errors_;
  }
}

void Judge::add_row(const RowRef& ref, const cpu::reference::Row& exact, const RowResult& got,
                    const std::vector<double>* low_precision) {
  ++verdict_.num_rows;
  verdict_.num_elements += static_cast<std::int64_t>(got.out.size());
  if (!check_class(ref, exact, got)) return;
  check_bounds(ref, exact, got);
  if (low_precision != nullptr && !exact.is_empty) add_errors(exact, got, *low_precision);
  if (exact.is_empty) return;
  ++verdict_.num_full_rows;
  double sum = 0, squares = 0;
  for (const double weight : exact.softmax) {
    sum += weight;
    squares += weight * weight;
  }
  if (squares > 0) num_weights_ += sum * sum / squares;
  const double top = *std::max_element(exact.softmax.begin(), exact.softmax.end());
  if (top > 1 - 1e-6) ++num_one_hot_;
}

// R1. If rounding the exact result dominates the straightforward implementation's error (one key
// has all the weight, or P is exact in the dtype), no implementation can reach 0.8 of it: then the
// mean error must not exceed it by more than half an ulp.
void Judge::judge_relative() {
  if (num_errors_ == 0) return;
  const auto count = static_cast<double>(num_errors_);
  verdict_.mean_error = sum_error_ / count;
  verdict_.pt_mean_error = sum_pt_error_ / count;
  if (!is_pt_finite_) return;  // scores overflow the dtype: nothing to compare with
  if (max_beyond_ulp_ > verdict_.pt_max_error)
    verdict_.failures.push_back(format_text("R1 largest error {}, straightforward {}",
                                            verdict_.max_error, verdict_.pt_max_error));
  constexpr std::int64_t kEnough = 64;
  const bool is_degenerate = sum_rounding_ >= 0.7 * sum_pt_error_;
  verdict_.judged_mean = num_errors_ >= kEnough && !is_degenerate;
  // If the kernel also rounds P, it only saves the rounding of scores. For small scores that is
  // nothing, and the two errors are samples of the same distribution; with few elements their means
  // are not significant, and the largest error is already judged.
  const bool rounds_probs = arithmetic_.prob_dtype != DType::f32;
  const double share = rounds_probs ? 1.25 : 0.8;
  if (verdict_.judged_mean && sum_error_ > share * sum_pt_error_)
    verdict_.failures.push_back(format_text("R1 mean error {}, straightforward {}",
                                            verdict_.mean_error, verdict_.pt_mean_error));
  const bool has_means = num_errors_ >= kEnough || !rounds_probs;
  if (!verdict_.judged_mean && has_means &&
      verdict_.mean_error > verdict_.pt_mean_error + max_ulp_ / 2)
    verdict_.failures.push_back(
        format_text("R1 mean error {}, straightforward {} (degenerate data)", verdict_.mean_error,
                    verdict_.pt_mean_error));
}

// R2. Applies only if the limit is meaningful: the limit is meant to be twice the error of sound
// arithmetic, so half of it must be at least the expected error; there must be enough samples for a
// mean; and the outputs must not be denormal in their dtype.
void Judge::judge_nmse() {
  const DType dtype = dtype_of(problem_);
  const double limit = dtype == DType::bf16 ? 1e-5 : dtype == DType::f16 ? 2e-7 : 1e-12;
  if (sum_exact2_ == 0) return;
  verdict_.nmse = sum_error2_ / sum_exact2_;
  const double mean_square = sum_exact2_ / static_cast<double>(verdict_.num_elements);
  // Number of samples. In f32 the scores' errors dominate: one sample per row. If P is rounded,
  // each weight's rounding, shared by all elements of a row; else the rounding of each element.
  const bool has_enough = dtype == DType::f32                    ? verdict_.num_full_rows >= 16
                          : arithmetic_.prob_dtype != DType::f32 ? num_weights_ >= 64
                                                                 : verdict_.num_elements >= 64;
  // Sums of rows that see nearly the same keys cancel together: the magnitude has one sample per
  // column of V, and over long sequences a single one may be almost 0.
  const std::int64_t num_columns = problem_.batch * problem_.num_kv_heads * problem_.head_dim_v;
  const double normal = smallest_denormal(dtype) / unit_roundoff(dtype) * 8;
  verdict_.judged_nmse = has_enough && num_columns >= 16 &&
                         2 * sum_expected_error2_ <= limit * sum_exact2_ &&
                         std::sqrt(mean_square) >= normal;
  if (verdict_.judged_nmse && verdict_.nmse > limit)
    verdict_.failures.push_back(
        format_text("R2 normalized mean squared error {} exceeds {}", verdict_.nmse, limit));
}

Verdict Judge::finish() {
  judge_relative();
  judge_nmse();
  if (verdict_.num_elements > 0)
    verdict_.zero_share =
        static_cast<double>(num_zero_) / static_cast<double>(verdict_.num_elements);
  if (verdict_.num_full_rows > 0)
    verdict_.one_hot_share =
        static_cast<double>(num_one_hot_) / static_cast<double>(verdict_.num_full_rows);
  return verdict_;
}

}  // namespace headrace::testing
