// Tests of the gradient rules: results with a known fault must fail, rounded exact results must
// pass.
#include "support/backward_rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string_view>

#include "conformance/backward.h"
#include "conformance/catalogue.h"

namespace headrace::testing {
namespace {

struct Judged {
  explicit Judged(DType dtype, std::initializer_list<Setting> settings = {})
      : test_case(named(dtype, settings), shape(dtype, 40, 60, 32, 4, 2, 1)) {
    test_case.make_gradients();
    problem =
        validate_backward(test_case.tensors(), test_case.gradients(), test_case.options()).value();
    args = make_backward_args(problem, test_case.tensors(), test_case.gradients(),
                              test_case.options());
    expected = expected_gradients(problem, args, test_case.largest_v(), false);
  }

  // Number of failed rules after `spoil` changed the exact gradients; only rules with this prefix.
  std::size_t num_failures(const std::function<void(Gradients&)>& spoil,
                           std::string_view rule = "") const {
    Gradients got = expected.exact;
    spoil(got);
    const DType dtype = dtype_of(problem);
    std::size_t count = 0;
    for (const auto values : {&Gradients::dq, &Gradients::dk, &Gradients::dv, &Gradients::dbias}) {
      for (double& x : got.*values) x = rounded_to(dtype, static_cast<float>(x));
      const GradientVerdict verdict =
          judge_gradient({"gradient", dtype, got.*values, expected, values, dtype != DType::f32});
      for (const std::string& text : verdict.failures) count += text.starts_with(rule) ? 1 : 0;
    }
    return count;
  }

  Case test_case;
  Problem problem;
  AttentionArgs args;
  ExpectedGradients expected;
};

void scale(std::vector<double>& x, double factor) {
  for (double& value : x) value *= factor;
}

TEST(BackwardRules, RoundedExactGradientsPass) {
  for (const DType dtype : kDtypes) {
    EXPECT_EQ(Judged(dtype).num_failures([](Gradients&) {}), 0u);
    EXPECT_EQ(Judged(dtype, {{Axis::causal, 1}, {Axis::bias, static_cast<int>(Bias::batch)}})
                  .num_failures([](Gradients&) {}),
              0u);
  }
}

// Also if the roundings of one of them cancel by chance.
TEST(BackwardRules, LowPrecisionComputationsPass) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    Judged judged(dtype);
    const auto low = judged.expected.low_precision;
    for (const Gradients& one : low)
      EXPECT_EQ(judged.num_failures([&](Gradients& g) { g = one; }, "R1"), 0u);
    for (std::size_t k = 0; k < low.size(); ++k) {
      judged.expected.low_precision = low;
      judged.expected.low_precision[k] = judged.expected.exact;
      for (const Gradients& one : low)
        EXPECT_EQ(judged.num_failures([&](Gradients& g) { g = one; }, "R1 gradient: largest"), 0u);
    }
  }
}

TEST(BackwardRules, FaultsAreFound) {
  for (const DType dtype : kDtypes) {
    const Judged judged(dtype, {{Axis::bias, static_cast<int>(Bias::batch)}});
    EXPECT_GT(judged.num_failures([](Gradients& g) { scale(g.dq, 1.02); }), 0u);
    EXPECT_GT(judged.num_failures([](Gradients& g) { scale(g.dk, 0.98); }), 0u);
    EXPECT_GT(judged.num_failures([](Gradients& g) { scale(g.dv, 0.98); }), 0u);
    EXPECT_GT(judged.num_failures([](Gradients& g) { scale(g.dbias, 1.02); }), 0u);
    EXPECT_GT(judged.num_failures([](Gradients& g) { scale(g.dk, 0); }), 0u);
    // Drop the last key's gradient; swap two neighbours of dv.
    EXPECT_GT(judged.num_failures([](Gradients& g) { g.dk.back() = 0; }), 0u);
    EXPECT_GT(judged.num_failures([](Gradients& g) { std::swap(g.dv[3], g.dv[4]); }), 0u);
    EXPECT_GT(judged.num_failures([](Gradients& g) { g.dq[0] = std::nan(""); }), 0u);
  }
}

// D without one of its products, as computed by a kernel with a wrong tail.
TEST(BackwardRules, AShiftOfDeltaIsDetected) {
  for (const DType dtype : kDtypes) {
    const Judged judged(dtype, {{Axis::lse, 1}});
    Judged other(dtype, {{Axis::lse, 1}});
    other.test_case.unlock_inputs();
    auto* dlse = static_cast<float*>(other.test_case.gradients().dlse.data);
    dlse[0] += 0.05f;  // dlse shifts D
    const Gradients shifted = cpu::reference::attention_backward(other.problem, other.args);
    EXPECT_GT(judged.num_failures([&](Gradients& g) { g = shifted; }), 0u);
  }
}

TEST(BackwardRules, EmptyRowsMustBePlusZero) {
  const Judged judged(DType::f32, {{Axis::mask, static_cast<int>(Mask::empty_rows)}});
  const auto at =
      std::find(judged.expected.bounds[0].dq.begin(), judged.expected.bounds[0].dq.end(), 0.0);
  ASSERT_NE(at, judged.expected.bounds[0].dq.end());
  const auto i = static_cast<std::size_t>(at - judged.expected.bounds[0].dq.begin());
  EXPECT_EQ(judged.num_failures([](Gradients&) {}), 0u);
  EXPECT_GT(judged.num_failures([i](Gradients& g) { g.dq[i] = 1e-30; }), 0u);
  EXPECT_GT(judged.num_failures([i](Gradients& g) { g.dq[i] = -0.0; }), 0u);
}

// Only dq, by one rounding for each of three key tiles.
TEST(BackwardRules, FixedPointSumsMayRound) {
  const Judged judged(DType::f32, {});
  Problem problem = judged.problem;
  problem.seqlen_k = 130;
  Schedule schedule;
  schedule.tile_n = 64;
  schedule.sum_bits = 20;
  const GradientArithmetic arithmetic = gradient_arithmetic(problem, schedule);
  EXPECT_NEAR(arithmetic.sum_error, 3 * 0x1p-20, 0.1 * 0x1p-20);
  const auto limit = [&](std::vector<double> Gradients::*values, GradientArithmetic x) {
    return gradient_limit(
        {"", DType::f32, judged.expected.exact.*values, judged.expected, values, false, x}, 0);
  };
  const double more = limit(&Gradients::dq, arithmetic) - limit(&Gradients::dq, {});
  EXPECT_NEAR(more, arithmetic.sum_error * judged.expected.largest_sum[0] * problem.softmax_scale,
              1e-3 * more);
  EXPECT_EQ(limit(&Gradients::dk, arithmetic), limit(&Gradients::dk, {}));
  EXPECT_EQ(limit(&Gradients::dv, arithmetic), limit(&Gradients::dv, {}));
}

TEST(BackwardRules, AnInfiniteSinkGivesZeroGradients) {
  Lab lab(named(DType::f32, {{Axis::sinks, 1}}), shape(DType::f32, 5, 9, 8));
  lab.fill(lab.tensors().sinks, [](const Index&) { return kInfinity; });
  lab.test_case.make_gradients();
  const ExpectedGradients expected =
      expected_gradients_of(lab.test_case, backward_problem(lab.test_case).value(), false);
  EXPECT_EQ(expected.num_zeros(), (5 * 2 + 2 * 9) * 8 + 2);
}

}  // namespace
}  // namespace headrace::testing
