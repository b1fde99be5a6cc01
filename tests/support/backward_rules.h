// The rules R1, R3 and R5 of rules.h for gradients: what is right, how far off float arithmetic may
// be, and what a straightforward implementation in the inputs' own 16-bit format would return.
#pragma once

#include <string>
#include <vector>

#include "backends/cpu/reference/backward.h"
#include "support/rules.h"

namespace headrace::testing {

using cpu::reference::Gradients;

// All three in the layout of Gradients.
struct ExpectedGradients {
  Gradients exact;
  Gradients bound;  // of the calculation: before the result is rounded
  // Of a straightforward computation in f16 or bf16 from what the backward is given: P and dS
  // rounded to the format, D from out as it was stored, sums in float, rounded once.
  Gradients low_precision;
  std::int64_t num_pairs = 0;  // of a row and a key that it sees
};
ExpectedGradients expected_gradients(const Problem& p, const AttentionArgs& args, double largest_v);

// One tensor of gradients as doubles, in the order of `exact`.
struct GradientResult {
  const char* name;
  DType dtype;
  const std::vector<double>& got;
  const std::vector<double>& exact;
  const std::vector<double>& bound;
  const std::vector<double>* low_precision;  // null: R1 does not apply
  std::int64_t num_pairs;
};

struct GradientVerdict {
  std::vector<std::string> failures;
  double utilisation = 0;  // largest share of R3's bound
  double mean_ratio = 0;   // of the mean error to the straightforward one's, where judged
  bool judged_mean = false;
};
GradientVerdict judge_gradient(const GradientResult& result);

}  // namespace headrace::testing
