// The rules R1, R3 and R5 of rules.h for gradients: what is right, how far off float arithmetic may
// be, and what a straightforward implementation in the inputs' own 16-bit format would return.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "backends/cpu/reference/backward.h"
#include "support/rules.h"

namespace headrace::testing {

using cpu::reference::Gradients;

// In which arithmetic products are made. Tensor cores: P and dS are rounded to a 16-bit format
// where the inputs have one, products of floats are three of tf32, exponentials and their arguments
// are a GPU's; dS may be made from P as it was rounded.
enum class Products { floats, tensor_cores, tensor_cores_rounded_p };
inline constexpr std::size_t kNumProducts = 3;

// Roundings of one pair of weight can make the largest error of a tensor, and in one computation
// they may cancel by chance: what others round as straightforwardly is then far more than 1.5 of
// it.
inline constexpr std::size_t kNumStraightforward = 2;

// All of them in the layout of Gradients.
struct ExpectedGradients {
  Gradients exact;
  // By Products, of the calculation: before the result is rounded. Those of tensor cores are empty
  // where nobody asked for them.
  std::array<Gradients, kNumProducts> bounds;
  // The most that the sums of a row of dq can be on the way, before the scale: a number for each.
  std::vector<double> largest_sum;
  // Of straightforward computations in f16 or bf16 from what the backward is given: P, dP and dS
  // rounded to the format, or P and dS alone; D from out as it was stored, sums in double, rounded
  // once.
  std::array<Gradients, kNumStraightforward> low_precision;
  // Exact but for D, which is taken from out as it was stored: what any backward has that keeps
  // out.
  Gradients from_stored;
  DType dtype = DType::f32;  // of q
  double softmax_scale = 0;
  std::int64_t num_rows = 0;       // (batch entry, head, query) that see a key
  std::int64_t num_pairs = 0;      // of such a row and a key that it sees
  double largest_score = 0;        // |scale| sum |q||k|, or |lse|
  std::int64_t num_zeros() const;  // gradients that must be exactly +0
};
ExpectedGradients expected_gradients(const Problem& p, const AttentionArgs& args, double largest_v,
                                     bool with_tensor_cores);

// What R3 has to know of a kernel.
struct GradientArithmetic {
  Products products = Products::floats;
  // What sums of dq are off by because they are integers, in units of the largest sum.
  double sum_error = 0;
};
GradientArithmetic gradient_arithmetic(const Problem& p, const Schedule& schedule);

// One tensor of gradients as doubles, in the order of `expected`.
struct GradientResult {
  const char* name;
  DType dtype;
  const std::vector<double>& got;
  const ExpectedGradients& expected;
  std::vector<double> Gradients::*values;  // which of the gradients
  bool is_relative;                        // R1 applies: f16 and bf16
  GradientArithmetic arithmetic = {};
  std::int64_t row_size = 1;  // elements of a query's or key's row, which share errors
};

// How far element i may be off: R3's bound and the rounding of the result. 0: it must be +0.
double gradient_limit(const GradientResult& result, std::size_t i);

// Largest mean error beside the straightforward one's: over many tensors, and but for chance of
// each.
inline constexpr double kMeanRatio = 1.1;

struct GradientVerdict {
  std::vector<std::string> failures;
  double utilisation = 0;  // largest share of R3's bound
  double max_ratio = 0;    // of the largest error beyond a unit to the straightforward one's
  double mean_ratio = 0;   // of the mean error to the straightforward one's, where judged
  bool judged_mean = false;
};
GradientVerdict judge_gradient(const GradientResult& result);

}  // namespace headrace::testing
