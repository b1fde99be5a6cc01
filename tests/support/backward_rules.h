// The rules R1, R3 and R5 of rules.h for gradients: exact values, error bounds of float arithmetic,
// and the results of straightforward implementations in the inputs' own 16-bit dtype.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "backends/cpu/reference/backward.h"
#include "support/rules.h"

namespace headrace::testing {

using cpu::reference::Gradients;

// The arithmetic of products. Tensor cores: P and dS are rounded to the inputs' 16-bit dtype, float
// products are 3xTF32, exponentials and their arguments have a GPU's errors; dS may be computed
// from the rounded P.
enum class Products { floats, tensor_cores, tensor_cores_rounded_p };
inline constexpr std::size_t kNumProducts = 3;

// Two computations: the largest error of a tensor may come from a single pair, whose roundings may
// cancel by chance in one computation. An equally straightforward one then exceeds 1.5 times of it.
inline constexpr std::size_t kNumStraightforward = 2;

// Expected gradients and bounds, all in the layout of Gradients.
struct ExpectedGradients {
  Gradients exact;
  // Error bounds by Products, before the final rounding. Those of tensor cores are empty unless
  // requested.
  std::array<Gradients, kNumProducts> bounds;
  // Bound of the partial sums of each row of dq, before the scale.
  std::vector<double> largest_sum;
  // Results of straightforward computations in f16 or bf16 from the backward's inputs: P, dP and dS
  // (or only P and dS) rounded to the dtype; D from the stored out; sums in double, rounded once.
  std::array<Gradients, kNumStraightforward> low_precision;
  // Exact except for D, which is computed from the stored out, as in any backward that stores out.
  Gradients from_stored;
  DType dtype = DType::f32;  // of q
  double softmax_scale = 0;
  std::int64_t num_rows = 0;       // number of (batch entry, head, query) that see a key
  std::int64_t num_pairs = 0;      // number of (row, visible key) pairs
  double largest_score = 0;        // max of |scale| sum |q||k| and |lse|
  std::int64_t num_zeros() const;  // number of gradients that must be exactly +0
};
ExpectedGradients expected_gradients(const Problem& p, const AttentionArgs& args, double largest_v,
                                     bool with_tensor_cores);

// The properties of a kernel that R3 needs.
struct GradientArithmetic {
  Products products = Products::floats;
  // Error of fixed-point sums of dq, in units of the largest sum.
  double sum_error = 0;
};
GradientArithmetic gradient_arithmetic(const Problem& p, const Schedule& schedule);

// One tensor of gradients as doubles, in the order of `expected`.
struct GradientResult {
  const char* name;
  DType dtype;
  const std::vector<double>& got;
  const ExpectedGradients& expected;
  std::vector<double> Gradients::*values;  // which gradient
  bool is_relative;                        // R1 applies (f16 and bf16)
  GradientArithmetic arithmetic = {};
  std::int64_t row_size = 1;  // elements per row of a query or key, which share errors
};

// Allowed error of element i: R3's bound plus the rounding of the result. 0: it must be +0.
double gradient_limit(const GradientResult& result, std::size_t i);

// Allowed ratio of the mean error to the straightforward one's, over many tensors and, with a
// statistical margin, for each.
inline constexpr double kMeanRatio = 1.1;

struct GradientVerdict {
  std::vector<std::string> failures;
  double utilisation = 0;  // largest fraction of R3's bound
  double max_ratio = 0;   // ratio of the largest error, minus one ulp, to the straightforward one's
  double mean_ratio = 0;  // ratio of the mean error to the straightforward one's, if judged
  bool judged_mean = false;
};
GradientVerdict judge_gradient(const GradientResult& result);

}  // namespace headrace::testing
