// Runs one backward call on one kernel in poisoned memory and checks every gradient; parts of the
// suite `backward`.
#pragma once

#include <array>

#include "conformance/suites.h"
#include "support/backward_rules.h"

namespace headrace::testing {

struct Gradient {
  const char* name;
  headrace_tensor headrace_attention_gradients::*tensor;
  std::vector<double> Gradients::*values;
};
inline constexpr Gradient kGradients[] = {
    {"dq", &headrace_attention_gradients::dq, &Gradients::dq},
    {"dk", &headrace_attention_gradients::dk, &Gradients::dk},
    {"dv", &headrace_attention_gradients::dv, &Gradients::dv},
    {"dbias", &headrace_attention_gradients::dbias, &Gradients::dbias},
    {"dsinks", &headrace_attention_gradients::dsinks, &Gradients::dsinks},
};

// A case's call, or a call on parts of its memory.
struct BackwardCall {
  headrace_attention_tensors tensors;
  headrace_attention_gradients gradients;
  headrace_attention_options options;
};
BackwardCall backward_call(const Case& test_case);

struct GradientOutput {
  std::string refusal;
  Schedule schedule;
  std::vector<std::string> failures;
  // Row-major elements of each gradient.
  std::array<std::vector<unsigned char>, std::size(kGradients)> bytes;
};
// Outputs are in the memory of `test_case`, after make_gradients().
GradientOutput run_gradients(const Target& target, Case& test_case, const BackwardCall& call,
                             int num_threads, const TuningConfig& config = {});
std::vector<double> doubles_of(const headrace_tensor& view,
                               const std::vector<unsigned char>& bytes);
// The name of the first gradient whose bits differ; null: none.
const char* other_bits(const GradientOutput& one, const GradientOutput& other);

// Requires make_gradients().
Result<Problem> backward_problem(const Case& test_case);
ExpectedGradients expected_gradients_of(const Case& test_case, const Problem& p,
                                        bool with_tensor_cores);
// Adds to `output.failures` and to the sums of `report`.
void judge_gradients(const Case& test_case, const Problem& problem,
                     const ExpectedGradients& expected, GradientOutput& output,
                     KernelReport& report);

}  // namespace headrace::testing
