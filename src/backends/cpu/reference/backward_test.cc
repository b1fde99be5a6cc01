// The analytic gradients against central differences, and oracle-free identities.
#include "backends/cpu/reference/backward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>

#include "backends/cpu/reference/row.h"
#include "tests/support/tiny_case.h"

namespace headrace::cpu::reference {
namespace {

using headrace::testing::TinyCase;

// Case `idx` of a family that combines every pair of features.
std::unique_ptr<TinyCase> make_case(int idx) {
  std::mt19937 random(static_cast<unsigned>(idx) * 7919u + 1u);
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const int group = 1 + pick(3);
  const int kv_heads = 1 + pick(2);
  const int seqlen_q = 1 + pick(5);
  const int seqlen_k = seqlen_q + pick(4);
  auto c = std::make_unique<TinyCase>(1 + pick(2), seqlen_q, seqlen_k, kv_heads * group, kv_heads,
                                      1 + pick(5), 1 + pick(4));
  Problem& p = c->p;
  p.softmax_scale = 0.3 + 0.2 * pick(4);
  p.causal = pick(3);
  if (pick(3) == 0) p.window_left = pick(3);
  if (pick(4) == 0) p.window_right = pick(2);
  if (pick(2) == 0) p.softcap = 1.0 + pick(3);
  p.has_alibi = pick(3) == 0;
  p.has_sinks = pick(2);
  p.has_mask = pick(3) == 0;
  p.has_tree_mask = pick(4) == 0;
  if (pick(3) == 0) p.dropout_p = 0.25;
  if (pick(2) == 0) p.bias_dtype = HEADRACE_F64;
  if (pick(4) == 0) {
    p.is_ragged = 1;
    p.batch = 2;
    c->cu_q = {0, 1, 1 + seqlen_q};
    c->cu_k = {0, 2, 2 + seqlen_k};
    p.total_q = c->cu_q.back();
    p.total_k = c->cu_k.back();
    p.seqlen_k = std::max(2, seqlen_k);
  }
  c->args.dropout_seed = 99;
  c->allocate(static_cast<std::uint64_t>(idx) + 1);
  if (has_bias(p)) c->use_bias(pick(2) == 0, pick(2) == 0);
  return c;
}

std::vector<double> random_vector(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> x(n);
  for (double& value : x) value = normal(random);
  return x;
}

// loss = <dout, out> + <dlse, lse> of the unrounded rows; empty rows contribute nothing.
double loss(const TinyCase& c, const std::vector<double>& dout, const std::vector<double>& dlse) {
  double sum = 0;
  Row row;
  for (std::int64_t b = 0; b < c.p.batch; ++b) {
    const Sequence s = sequence_of(c.p, c.args, b);
    for (std::int64_t h = 0; h < c.p.num_heads; ++h) {
      for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
        attention_row(c.p, c.args, s, b, h, i, row);
        if (row.is_empty) continue;
        const std::int64_t packed = (c.p.is_ragged ? 0 : b * c.p.seqlen_q) + s.row_q + i;
        for (std::int64_t d = 0; d < c.p.head_dim_v; ++d)
          sum += dout[static_cast<std::size_t>((packed * c.p.num_heads + h) * c.p.head_dim_v + d)] *
                 row.out[static_cast<std::size_t>(d)];
        const std::int64_t at = c.p.is_ragged ? h * c.p.total_q + s.row_q + i
                                              : (b * c.p.num_heads + h) * c.p.seqlen_q + i;
        sum += dlse[static_cast<std::size_t>(at)] * row.lse;
      }
    }
  }
  return sum;
}

constexpr int kNumCases = 80;

Gradients gradients_of(TinyCase& c, const std::vector<double>& dout,
                       const std::vector<double>& dlse) {
  c.use_gradients(dout, dlse);
  return attention_backward(c.p, c.args);
}

struct Computed {
  explicit Computed(int idx) : c(make_case(idx)) {}
  std::unique_ptr<TinyCase> c;
  std::vector<double> dout = random_vector(c->out.size(), 5);
  std::vector<double> dlse = random_vector(c->lse.size(), 6);
  Gradients g = gradients_of(*c, dout, dlse);
};

class BackwardCase : public ::testing::TestWithParam<int>, protected Computed {
 protected:
  BackwardCase() : Computed(GetParam()) {}

  void expect_differences(std::vector<double>& x, const std::vector<double>& gradient,
                          const char* name) {
    ASSERT_EQ(x.size(), gradient.size()) << name;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double h = 1e-6, before = x[i];
      x[i] = before + h;
      const double up = loss(*c, dout, dlse);
      x[i] = before - h;
      const double down = loss(*c, dout, dlse);
      x[i] = before;
      const double numeric = (up - down) / (2 * h);
      EXPECT_NEAR(gradient[i], numeric, 1e-6 * (1 + std::abs(numeric))) << name << "[" << i << "]";
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Family, BackwardCase, ::testing::Range(0, kNumCases));

TEST_P(BackwardCase, EqualsCentralDifferences) {
  expect_differences(c->q, g.dq, "dq");
  expect_differences(c->k, g.dk, "dk");
  expect_differences(c->v, g.dv, "dv");
  // Sinks are floats, so use steps representable in float.
  for (std::size_t h = 0; h < c->sinks.size(); ++h) {
    const float before = c->sinks[h];
    const double step = 0x1p-10;
    c->sinks[h] = static_cast<float>(before + step);
    const double up = loss(*c, dout, dlse), x_up = c->sinks[h];
    c->sinks[h] = static_cast<float>(before - step);
    const double down = loss(*c, dout, dlse), x_down = c->sinks[h];
    c->sinks[h] = before;
    EXPECT_NEAR(g.dsinks[h], (up - down) / (x_up - x_down), 2e-5) << "dsinks[" << h << "]";
  }
}

// The derivative along a random direction of q, k and v.
TEST_P(BackwardCase, DirectionalDerivativeIsTheInnerProduct) {
  std::vector<double>* tensors[] = {&c->q, &c->k, &c->v};
  const std::vector<double>* gradients[] = {&g.dq, &g.dk, &g.dv};
  std::vector<std::vector<double>> directions;
  double expected = 0;
  for (unsigned t = 0; t < 3; ++t) {
    directions.push_back(random_vector(tensors[t]->size(), 20 + t));
    for (std::size_t i = 0; i < directions[t].size(); ++i)
      expected += (*gradients[t])[i] * directions[t][i];
  }
  const auto loss_at = [&](double step) {
    for (unsigned t = 0; t < 3; ++t)
      for (std::size_t i = 0; i < directions[t].size(); ++i)
        (*tensors[t])[i] += step * directions[t][i];
    return loss(*c, dout, dlse);
  };
  const double h = 1e-3;  // fourth order: f' = (8 (f1 - f-1) - (f2 - f-2)) / 12 h
  const double up = loss_at(h), up2 = loss_at(h), down = loss_at(-3 * h), down2 = loss_at(-h);
  const double numeric = (8 * (up - down) - (up2 - down2)) / (12 * h);
  EXPECT_NEAR(numeric, expected, 1e-8 * (1 + std::abs(expected)));
}

void check_bias_gradient(const Computed& computed) {
  const auto& [c, dout, dlse, g] = computed;
  const auto& shape = g.dbias_shape;
  // Perturb each element in memory.
  const ScoreOperand& bias = c->args.bias;
  std::size_t i = 0;
  for (std::int64_t b = 0; b < shape[0]; ++b) {
    for (std::int64_t h = 0; h < shape[1]; ++h) {
      for (std::int64_t q = 0; q < shape[2]; ++q) {
        for (std::int64_t k = 0; k < shape[3]; ++k, ++i) {
          double& x =
              c->bias[static_cast<std::size_t>(b * bias.stride_batch + h * bias.stride_head +
                                               q * bias.stride_q + k * bias.stride_k)];
          const double before = x, step = 1e-6;
          x = before + step;
          const double up = loss(*c, dout, dlse);
          x = before - step;
          const double down = loss(*c, dout, dlse);
          x = before;
          const double numeric = (up - down) / (2 * step);
          ASSERT_NEAR(g.dbias[i], numeric, 1e-6 * (1 + std::abs(numeric)));
        }
      }
    }
  }
}

TEST(Backward, BiasGradientIsSummedOverBroadcastAxes) {
  int checked = 0;
  for (int idx = 0; idx < kNumCases; ++idx) {
    const Computed computed(idx);
    if (!has_bias(computed.c->p)) continue;
    check_bias_gradient(computed);
    ++checked;
  }
  EXPECT_GE(checked, 20);
}

// Adding a constant to all scores of a row does not change O and shifts the lse by it (without a
// sink): the sum of dbias over keys is the row's dlse, or zero for an empty row.
void check_row_sums(const Computed& computed) {
  const auto& [c, dout, dlse, g] = computed;
  Row row;
  for (std::size_t r = 0; r < dlse.size(); ++r) {
    const auto index = static_cast<std::int64_t>(r);
    const std::int64_t i = index % c->p.seqlen_q, h = index / c->p.seqlen_q % c->p.num_heads;
    const std::int64_t b = index / c->p.seqlen_q / c->p.num_heads;
    attention_row(c->p, c->args, sequence_of(c->p, c->args, b), b, h, i, row);
    double sum = 0;
    for (std::int64_t j = 0; j < c->p.seqlen_k; ++j)
      sum += g.dbias[r * static_cast<std::size_t>(c->p.seqlen_k) + static_cast<std::size_t>(j)];
    EXPECT_NEAR(sum, row.is_empty ? 0.0 : dlse[r], 1e-12);
  }
}

TEST(Backward, RowsOfTheScoreGradientSumToTheLseGradient) {
  int checked = 0;
  for (int idx = 0; idx < kNumCases; ++idx) {
    const Computed computed(idx);
    const Problem& p = computed.c->p;
    const auto& shape = computed.g.dbias_shape;
    if (!has_bias(p) || p.has_sinks || p.is_ragged || shape[0] != p.batch || shape[2] != p.seqlen_q)
      continue;
    check_row_sums(computed);
    ++checked;
  }
  EXPECT_GE(checked, 3);
}

// D is both the weighted mean of dP in a row and rowsum(dO * O): dsinks is computed from one and
// checked with the other.
TEST(Backward, SinkGradientMatchesTheMeanOfDp) {
  int checked = 0;
  for (int idx = 0; idx < kNumCases; ++idx) {
    const Computed computed(idx);
    const auto& [c, dout, dlse, g] = computed;
    if (!c->p.has_sinks || c->p.is_ragged) continue;
    ++checked;
    std::vector<double> expected(c->sinks.size());
    Row row;
    for (std::size_t r = 0; r < dlse.size(); ++r) {
      const auto index = static_cast<std::int64_t>(r);
      const std::int64_t i = index % c->p.seqlen_q, h = index / c->p.seqlen_q % c->p.num_heads;
      const std::int64_t b = index / c->p.seqlen_q / c->p.num_heads;
      attention_row(c->p, c->args, sequence_of(c->p, c->args, b), b, h, i, row);
      if (row.is_empty) continue;
      double mean = 0;  // of dP, weighted with P
      for (std::int64_t j = 0; j < c->p.seqlen_k; ++j) {
        const std::int64_t v = row_offset(c->args.v, b, j, h / group_size(c->p));
        const std::int64_t from = row_offset(c->args.gradients.dout, b, i, h);
        for (std::int64_t d = 0; d < c->p.head_dim_v; ++d)
          mean += row.probs[static_cast<std::size_t>(j)] * c->v[static_cast<std::size_t>(v + d)] *
                  dout[static_cast<std::size_t>(from + d)];
      }
      expected[static_cast<std::size_t>(h)] +=
          std::exp(c->sinks[static_cast<std::size_t>(h)] - row.lse) * (dlse[r] - mean);
    }
    for (std::size_t h = 0; h < expected.size(); ++h)
      EXPECT_NEAR(g.dsinks[h], expected[h], 1e-12 * (1 + std::abs(expected[h])));
  }
  EXPECT_GE(checked, 10);
}

TEST(Backward, EmptyRowsGiveExactlyZero) {
  TinyCase c(1, 3, 2, 1, 1, 2, 2);
  c.p.has_mask = 1;
  c.p.has_sinks = 1;
  c.allocate(1);
  c.mask.assign(6, 0);
  const auto dout = random_vector(c.out.size(), 1), dlse = random_vector(c.lse.size(), 2);
  const Gradients g = gradients_of(c, dout, dlse);
  for (const auto* x : {&g.dq, &g.dk, &g.dv, &g.dsinks}) {
    for (const double value : *x) EXPECT_EQ(value, 0.0);
  }
}

}  // namespace
}  // namespace headrace::cpu::reference
