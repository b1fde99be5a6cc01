#include "support/backward_rules.h"

#include <algorithm>
#include <cmath>

#include "base/math.h"
#include "core/dtype.h"

namespace headrace::testing {

// A fixed-point sum has one rounding of half a step per key tile (more for large terms, but still
// far less than the errors of products). A step is at most 2^(1 - bits) of the largest sum, because
// the scale is a power of 2, and of 1.01 of it for errors of P.
GradientArithmetic gradient_arithmetic(const Problem& p, const Schedule& schedule) {
  GradientArithmetic x;
  if (schedule.ds_from_rounded_p)
    x.products = Products::tensor_cores_rounded_p;
  else if (schedule.prob_dtype != DType::f32 || schedule.product_error > 0)
    x.products = Products::tensor_cores;
  if (schedule.sum_bits > 0)
    x.sum_error = 1.02 * std::ldexp(1.0, -schedule.sum_bits) *
                  static_cast<double>(ceil_div(p.seqlen_k, schedule.tile_n));
  return x;
}

std::int64_t ExpectedGradients::num_zeros() const {
  std::int64_t count = 0;
  for (const auto values :
       {&Gradients::dq, &Gradients::dk, &Gradients::dv, &Gradients::dbias, &Gradients::dsinks})
    count += std::count((bounds[0].*values).begin(), (bounds[0].*values).end(), 0.0);
  return count;
}

double gradient_limit(const GradientResult& x, std::size_t i) {
  const auto& bounds = x.expected.bounds[static_cast<std::size_t>(x.arithmetic.products)];
  double bound = (bounds.*x.values)[i];
  if (bound == 0) return 0;
  if (x.values == &Gradients::dq) {
    const std::size_t columns = x.got.size() / x.expected.largest_sum.size();
    bound += x.arithmetic.sum_error * x.expected.largest_sum[i / columns] *
             std::abs(x.expected.softmax_scale);
  }
  const double exact = (x.expected.exact.*x.values)[i], u = unit_roundoff(x.dtype);
  return bound * (1 + u) + u * std::abs(exact) + smallest_denormal(x.dtype);
}

namespace {

constexpr double kE32 = 0x1p-24;

struct Errors {
  double max = 0, sum = 0, pt_max = 0, pt_sum = 0, beyond_ulp = 0, rounding = 0, max_ulp = 0;
  double stored_max = 0, stored_sum = 0;  // of the exact gradients computed from the stored out
  double largest = 0;                     // exact gradient
  std::int64_t num_judged = 0;            // elements that need not be zero
};

// R1 for gradients. The largest error may be 1.5 times that of the straightforward computations
// plus one ulp. The mean error may be 1.1 times that of the first one, or half an ulp more where
// rounding the exact result dominates. If the roundings of the straightforward computations happen
// to cancel the error that rounding out alone causes, that error counts instead (with few pairs of
// significant weight there are few samples; if all keys are equal, all dS of a row are one sample).
//
// The elements of a row share the error of its D, and those of a key the errors of its pairs, so a
// mean over n rows of the tensor is a mean of n samples (if only few keys are seen, by many rows,
// dk and dv have fewer samples than rows). The samples are magnitudes of normal errors, whose
// standard deviation is 0.76 of their mean, so the ratio of two such means has a deviation of 0.76
// sqrt(2 / n). A single tensor, one of thousands, may deviate by three of them; the mean of all
// ratios has no such margin (kMeanRatio).
//
// Judged only if the two are comparable: there must be enough rows and enough keys, and the float
// error of scores and lse must be below that of the dtype. For scores of -1e4 and beyond the
// straightforward error may be almost zero, because f16 rounds all of them to the same number,
// while P = exp(s - lse) has the float errors of both.
// Gradients with roundings near 2^-126, or sums of 64 numbers below it, are not comparable either:
// kernels that flush denormals (bf16 pairs, atomic float sums) lose them, the straightforward
// computation does not. R3 bounds that error.
bool is_comparable(const GradientResult& x, const Errors& e) {
  if (e.largest * unit_roundoff(x.dtype) < 0x1p-120) return false;
  return x.expected.num_rows >= 16 && x.expected.num_pairs >= 64 &&
         is_score_below_format(x.expected.largest_score, x.expected.dtype);
}

void judge_relative(const GradientResult& x, const Errors& e, GradientVerdict& verdict) {
  if (!std::isfinite(e.pt_sum)) return;  // overflows the dtype: nothing to compare with
  const auto count = static_cast<double>(e.num_judged);
  const double worst = std::max(e.pt_max, e.stored_max);
  if (worst > 0) verdict.max_ratio = e.beyond_ulp / worst;
  if (e.beyond_ulp > 1.5 * worst)
    verdict.failures.push_back(
        format_text("R1 {}: largest error {}, straightforward {}", x.name, e.max, e.pt_max));
  verdict.judged_mean = e.num_judged >= 64 && e.rounding < 0.7 * e.pt_sum;
  const double least_sum = std::max(e.pt_sum, e.stored_sum);
  if (verdict.judged_mean) verdict.mean_ratio = e.sum / least_sum;
  const std::int64_t num_samples =
      std::max<std::int64_t>(std::min(x.expected.num_rows, ceil_div(e.num_judged, x.row_size)), 1);
  const double chance = 3 * 0.76 * std::sqrt(2.0 / static_cast<double>(num_samples));
  const bool is_worse = verdict.judged_mean ? e.sum > (kMeanRatio + chance) * least_sum
                                            : e.sum > least_sum + count * e.max_ulp / 2;
  if (is_worse)
    verdict.failures.push_back(format_text("R1 {}: mean error {}, straightforward {}", x.name,
                                           e.sum / count, least_sum / count));
}

}  // namespace

GradientVerdict judge_gradient(const GradientResult& x) {
  GradientVerdict verdict;
  Errors e;
  const auto fail = [&](const std::string& text) {
    if (verdict.failures.size() < 3) verdict.failures.push_back(text);
  };
  const std::vector<double>& exact = x.expected.exact.*x.values;
  const std::vector<double>& from_stored = x.expected.from_stored.*x.values;
  for (std::size_t i = 0; i < x.got.size(); ++i) {
    const double error = std::abs(x.got[i] - exact[i]);
    const double limit = gradient_limit(x, i);
    if (limit == 0) {
      if (x.got[i] != 0 || std::signbit(x.got[i]))
        fail(format_text("R5 {}[{}] is {} instead of +0", x.name, i, x.got[i]));
      continue;
    }
    verdict.utilisation = std::max(verdict.utilisation, error / limit);
    if (!(error <= limit))
      fail(format_text("R3 {}[{}] is {}, exact {}: error {} exceeds the bound {}", x.name, i,
                       x.got[i], exact[i], error, limit));
    std::array<double, kNumStraightforward> pt_errors;
    for (std::size_t k = 0; k < pt_errors.size(); ++k)
      pt_errors[k] = std::abs((x.expected.low_precision[k].*x.values)[i] - exact[i]);
    const double ulp = ulp_at(x.dtype, exact[i]);
    const double nearest = rounded_to(x.dtype, static_cast<float>(exact[i]));
    ++e.num_judged;
    e.largest = std::max(e.largest, std::abs(exact[i]));
    e.max = std::max(e.max, error);
    for (const double pt_error : pt_errors) e.pt_max = std::max(e.pt_max, pt_error);
    e.stored_max = std::max(e.stored_max, std::abs(from_stored[i] - exact[i]));
    e.beyond_ulp = std::max(e.beyond_ulp, error - ulp);
    e.max_ulp = std::max(e.max_ulp, ulp);
    e.sum += error;
    e.stored_sum += std::abs(from_stored[i] - exact[i]);
    e.pt_sum += pt_errors[0];
    e.rounding += std::abs(nearest - exact[i]);
  }
  if (x.is_relative && is_comparable(x, e)) judge_relative(x, e, verdict);
  return verdict;
}

}  // namespace headrace::testing
