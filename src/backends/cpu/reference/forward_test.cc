// The reference against results computed by hand or by a few lines of independent arithmetic.
#include "backends/cpu/reference/forward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "backends/cpu/reference/row.h"
#include "tests/support/tiny_case.h"

namespace headrace::cpu::reference {
namespace {

using headrace::testing::TinyCase;
constexpr double kInf = std::numeric_limits<double>::infinity();

void run(TinyCase& c) {
  Plan plan;
  plan.problem = c.p;
  ASSERT_FALSE(kForwardKernel.launch(plan, c.args, {}, nullptr).has_value());
}

// All logits equal (q = 0) and V[j] = j: the output is the mean of the visible indices, the lse is
// the log of their number.
struct Uniform : TinyCase {
  Uniform(std::int64_t seqlen_q, std::int64_t seqlen_k)
      : TinyCase(1, seqlen_q, seqlen_k, 1, 1, 2, 1) {}
  void expect(std::int64_t row, std::int64_t first, std::int64_t last) {
    allocate(1);
    for (double& x : q) x = 0;
    for (std::size_t j = 0; j < v.size(); ++j) v[j] = static_cast<double>(j);
    run(*this);
    EXPECT_NEAR(out[static_cast<std::size_t>(row)], static_cast<double>(first + last) / 2, 1e-12)
        << "row " << row;
    EXPECT_NEAR(lse[static_cast<std::size_t>(row)], std::log(static_cast<double>(last - first + 1)),
                1e-12);
  }
  void expect_empty(std::int64_t row) {
    allocate(1);
    run(*this);
    EXPECT_EQ(out[static_cast<std::size_t>(row)], 0.0);
    EXPECT_EQ(lse[static_cast<std::size_t>(row)], -kInf);
  }
};

TEST(ReferenceMasks, CausalBottomRight) {
  Uniform wide(3, 5);
  wide.p.causal = HEADRACE_CAUSAL_BOTTOM_RIGHT;
  wide.expect(0, 0, 2);
  wide.expect(2, 0, 4);
  Uniform tall(5, 3);
  tall.p.causal = HEADRACE_CAUSAL_BOTTOM_RIGHT;
  tall.expect_empty(0);
  tall.expect_empty(1);
  tall.expect(2, 0, 0);
  tall.expect(4, 0, 2);
}

TEST(ReferenceMasks, CausalTopLeft) {
  Uniform wide(3, 5);
  wide.p.causal = HEADRACE_CAUSAL_TOP_LEFT;
  wide.expect(0, 0, 0);
  wide.expect(2, 0, 2);
  Uniform tall(5, 3);
  tall.p.causal = HEADRACE_CAUSAL_TOP_LEFT;
  tall.expect(0, 0, 0);
  tall.expect(4, 0, 2);
}

TEST(ReferenceMasks, WindowsAreInclusive) {
  Uniform both(8, 8);
  both.p.window_left = 2;
  both.p.window_right = 1;
  both.expect(0, 0, 1);
  both.expect(4, 2, 5);
  both.expect(7, 5, 7);
  Uniform only_self(4, 4);
  only_self.p.window_left = only_self.p.window_right = 0;
  only_self.expect(3, 3, 3);
  Uniform shifted(2, 6);  // without a causal mask, windows are bottom-right aligned, too
  shifted.p.window_left = 1;
  shifted.expect(0, 3, 5);
  Uniform causal(4, 4);
  causal.p.causal = HEADRACE_CAUSAL_TOP_LEFT;
  causal.p.window_left = 1;
  causal.expect(3, 2, 3);
}

TEST(ReferenceMasks, TreeMaskCoversTheLastQueriesOnly) {
  Uniform c(3, 5);  // keys 0 and 1 are the prefix
  c.p.has_tree_mask = 1;
  c.allocate(1);
  for (double& x : c.q) x = 0;
  for (std::size_t j = 0; j < c.v.size(); ++j) c.v[j] = static_cast<double>(j);
  c.tree = {0b001, 0b011, 0b101};
  c.args.tree_mask = c.tree.data();
  run(c);
  EXPECT_NEAR(c.out[0], (0 + 1 + 2) / 3.0, 1e-12);
  EXPECT_NEAR(c.out[1], (0 + 1 + 2 + 3) / 4.0, 1e-12);
  EXPECT_NEAR(c.out[2], (0 + 1 + 2 + 4) / 4.0, 1e-12);
}

TEST(ReferenceScores, EachTermInItsPlace) {
  TinyCase c(1, 1, 2, 1, 1, 1, 1);
  c.p.softmax_scale = 0.5;
  c.p.softcap = 3.0;
  c.p.has_alibi = 1;
  c.p.has_sinks = 1;
  c.p.bias_dtype = HEADRACE_F64;
  c.allocate(3);
  c.use_bias(true, true);
  c.q = {2.0};
  c.k = {1.5, -4.0};
  c.v = {10.0, 20.0};
  c.bias = {0.25, -0.5};
  c.slopes = {0.125f};
  c.sinks = {0.75f};
  run(c);
  // The query is key 1's neighbour: distance 1 to key 0, 0 to key 1.
  const double s0 = 3.0 * std::tanh(0.5 * 2.0 * 1.5 / 3.0) - 0.125 * 1 + 0.25;
  const double s1 = 3.0 * std::tanh(0.5 * 2.0 * -4.0 / 3.0) - 0.5;
  const double sum = std::exp(s0) + std::exp(s1) + std::exp(0.75);
  EXPECT_NEAR(c.out[0], (10 * std::exp(s0) + 20 * std::exp(s1)) / sum, 1e-12);
  EXPECT_NEAR(c.lse[0], std::log(sum), 1e-12);
}

TEST(ReferenceSinks, Infinities) {
  for (const float sink :
       {-std::numeric_limits<float>::infinity(), std::numeric_limits<float>::infinity()}) {
    TinyCase c(1, 1, 3, 1, 1, 2, 1);
    c.p.has_sinks = 1;
    c.allocate(4);
    c.sinks = {sink};
    run(c);
    if (sink > 0) {
      EXPECT_EQ(c.out[0], 0.0);
      EXPECT_EQ(c.lse[0], kInf);
    } else {
      EXPECT_TRUE(std::isfinite(c.lse[0]));
      EXPECT_NE(c.out[0], 0.0);
    }
  }
}

TEST(ReferenceRows, EmptyRowsAreZeroEvenWithASink) {
  TinyCase c(1, 2, 2, 1, 1, 2, 3);
  c.p.has_mask = c.p.has_sinks = 1;
  c.allocate(5);
  c.mask = {0, 0, 1, 1};
  c.args.mask.data = c.mask.data();
  run(c);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(c.out[static_cast<std::size_t>(i)], 0.0);
  EXPECT_EQ(c.lse[0], -kInf);
  EXPECT_TRUE(std::isfinite(c.lse[1]));

  TinyCase biased(1, 1, 2, 1, 1, 2, 1);  // a bias of -inf over the whole row
  biased.p.bias_dtype = HEADRACE_F64;
  biased.allocate(6);
  biased.use_bias(true, true);
  biased.bias = {-kInf, -kInf};
  run(biased);
  EXPECT_EQ(biased.out[0], 0.0);
  EXPECT_EQ(biased.lse[0], -kInf);
}

TEST(ReferenceRows, NoKeysAtAll) {
  TinyCase c(2, 3, 0, 2, 1, 4, 4);
  c.allocate(7);
  run(c);
  for (const double x : c.out) EXPECT_EQ(x, 0.0);
  for (const double x : c.lse) EXPECT_EQ(x, -kInf);
}

TEST(ReferenceNan, ReachesExactlyTheRowsThatSeeIt) {
  for (const bool in_value : {false, true}) {
    TinyCase c(1, 4, 4, 2, 1, 3, 3);
    c.p.causal = HEADRACE_CAUSAL_BOTTOM_RIGHT;
    c.allocate(8);
    (in_value ? c.v : c.k)[2 * 3] = std::nan("");  // key 2: queries 2 and 3 see it
    run(c);
    for (std::int64_t i = 0; i < 4; ++i) {
      for (std::int64_t h = 0; h < 2; ++h)
        EXPECT_EQ(std::isnan(c.at(c.out, i, h, 2, 3, 0)), i >= 2) << "query " << i << " head " << h;
    }
  }
}

TEST(ReferenceHeads, GroupsShareTheirKeys) {
  TinyCase c(1, 1, 2, 4, 2, 1, 1);
  c.allocate(9);
  c.q = {0, 0, 0, 0};
  c.v = {1, 10, 3, 30};  // [key][kv head]
  run(c);
  EXPECT_NEAR(c.out[0], 2.0, 1e-12);
  EXPECT_NEAR(c.out[1], 2.0, 1e-12);
  EXPECT_NEAR(c.out[2], 20.0, 1e-12);
  EXPECT_NEAR(c.out[3], 20.0, 1e-12);
}

TEST(ReferenceRagged, EachSequenceEqualsItselfAlone) {
  TinyCase c(3, 4, 5, 2, 1, 3, 2);
  c.p.is_ragged = 1;
  c.p.causal = HEADRACE_CAUSAL_BOTTOM_RIGHT;
  c.cu_q = {0, 4, 4, 6};
  c.cu_k = {0, 5, 8, 8};  // the last sequence has queries but no key
  c.p.total_q = 6;
  c.p.total_k = 8;
  c.allocate(10);
  run(c);
  TinyCase alone(1, 4, 5, 2, 1, 3, 2);
  alone.p.causal = HEADRACE_CAUSAL_BOTTOM_RIGHT;
  alone.allocate(11);
  std::copy_n(c.q.begin(), alone.q.size(), alone.q.begin());
  std::copy_n(c.k.begin(), alone.k.size(), alone.k.begin());
  std::copy_n(c.v.begin(), alone.v.size(), alone.v.begin());
  run(alone);
  for (std::size_t i = 0; i < alone.out.size(); ++i) EXPECT_EQ(c.out[i], alone.out[i]);
  for (std::size_t i = alone.out.size(); i < c.out.size(); ++i) EXPECT_EQ(c.out[i], 0.0);
}

TEST(ReferenceProbs, AreWrittenInTheTypeOfTheInputs) {
  TinyCase c(1, 2, 3, 2, 1, 2, 1);
  c.p.has_probs = 1;
  c.p.causal = HEADRACE_CAUSAL_BOTTOM_RIGHT;
  c.allocate(13);
  std::vector<double> probs(2 * 2 * 3, -7.0);
  c.args.probs = {probs.data(), DType::f64, 12, 6, 3, 1};
  run(c);
  for (std::size_t row = 0; row < 4; ++row) {
    EXPECT_NEAR(probs[row * 3] + probs[row * 3 + 1] + probs[row * 3 + 2], 1.0, 1e-12);
    EXPECT_EQ(probs[row * 3 + 2] == 0.0, row % 2 == 0);  // query 0 does not see key 2
  }
}

TEST(ReferenceDropout, ScalesTheKeptElements) {
  TinyCase c(1, 2, 64, 1, 1, 2, 1);
  c.p.dropout_p = 0.5;
  c.args.dropout_seed = 11;
  c.allocate(12);
  for (double& x : c.q) x = 0;
  for (double& x : c.v) x = 1;
  run(c);
  int kept = 0;
  for (std::int64_t j = 0; j < 64; ++j) kept += is_kept(c.p, c.args, 0, 0, 1, j);
  EXPECT_NEAR(c.out[1], kept / 64.0 * 2.0, 1e-12);
  EXPECT_NEAR(c.lse[1], std::log(64.0), 1e-12);  // before dropout
  EXPECT_GT(kept, 16);
  EXPECT_LT(kept, 48);
}

}  // namespace
}  // namespace headrace::cpu::reference
