// Cases of each kind reach the kernels that are compiled for it.
#include "conformance/covering.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "attention/validate.h"
#include "conformance/backward_checks.h"
#include "core/problem.h"

namespace headrace::testing {
namespace {

// The restrictions of tensor-core kernels for plain scores.
bool is_taken(const Problem& p) {
  const bool is_16_bit = dtype_of(p) == DType::f16 || dtype_of(p) == DType::bf16;
  return is_16_bit && p.head_dim % 8 == 0 && p.head_dim_v % 8 == 0 &&
         std::max(p.head_dim, p.head_dim_v) <= 256 && p.alignment >= kWholeAlignment &&
         !p.has_negative_strides && p.softmax_scale > 0 && p.seqlen_q > 0 && p.seqlen_k > 0 &&
         (!p.is_ragged || (p.total_q > 0 && p.total_k > 0));
}

TEST(PlainCases, SufficeForAKernelOfPlainScores) {
  const std::vector<CaseName> cases = plain_cases(kPlainSmall, 1);
  const auto count = std::count_if(cases.begin(), cases.end(), [](const CaseName& name) {
    Case test_case(name);
    test_case.make_gradients();
    const Problem p = backward_problem(test_case).value();
    return is_taken(p) && !has_general_scores(p);
  });
  EXPECT_GE(count, 60);
}

// Each kind with grouped heads, in ragged batches, or with a gradient of its own.
TEST(ScoredCases, CoverEveryKindOfScores) {
  int num_softcap = 0, num_wide_softcap = 0, num_alibi_of_group = 0, num_ragged_bias = 0,
      num_dbias = 0, num_others = 0;
  for (const CaseName& name : scored_cases(kScoredSmall, 1)) {
    Case test_case(name);
    test_case.make_gradients();
    const Problem p = backward_problem(test_case).value();
    if (!is_taken(p)) continue;
    num_softcap += has_softcap(p) ? 1 : 0;
    num_wide_softcap += has_softcap(p) && p.head_dim > 128 ? 1 : 0;
    num_alibi_of_group += p.has_alibi && p.num_heads > p.num_kv_heads ? 1 : 0;
    num_ragged_bias += has_bias(p) && p.is_ragged ? 1 : 0;
    num_dbias += p.has_dbias ? 1 : 0;
    num_others += p.has_mask || p.has_tree_mask || has_dropout(p) ? 1 : 0;
  }
  EXPECT_GE(num_softcap, 8);
  EXPECT_GE(num_wide_softcap, 2);
  EXPECT_GE(num_alibi_of_group, 4);
  EXPECT_GE(num_ragged_bias, 4);
  EXPECT_GE(num_dbias, 8);
  EXPECT_EQ(num_others, 0);
}

// By TMA, for more than one warp.
bool can_be_copied(const ScoreOperand& bias, const Problem& p) {
  return bias.dtype == dtype_of(p) && bias.stride_k == 1 && bias.stride_q > 0 &&
         (bias.stride_batch | bias.stride_head | bias.stride_q) % 8 == 0 &&
         reinterpret_cast<std::uintptr_t>(bias.data) % 16 == 0 && p.seqlen_q > 16;
}

// Every feature at every head_dim of its kernels, and a bias that TMA can load.
TEST(OneFeatureCases, HaveEveryFeatureAlone) {
  int num_softcap[3] = {}, num_alibi[3] = {}, num_bias[3] = {}, num_dropout[3] = {};
  int num_boxes = 0;
  for (const CaseName& name : one_feature_cases(kOneFeatureSmall, 1)) {
    Case test_case(name);
    const Call call = make_call(test_case).value();
    const Problem& p = call.problem;
    const int width = p.head_dim <= 64 ? 0 : p.head_dim <= 128 ? 1 : 2;
    const bool has[4] = {has_softcap(p), p.has_alibi != 0, has_bias(p), has_dropout(p)};
    EXPECT_EQ(std::count(has, has + 4, true), 1) << describe(name.values);
    EXPECT_FALSE(p.has_mask || p.has_tree_mask);
    num_softcap[width] += has[0];
    num_alibi[width] += has[1];
    num_bias[width] += has[2];
    num_dropout[width] += has[3];
    num_boxes += has[2] && can_be_copied(call.args.bias, p) ? 1 : 0;
  }
  EXPECT_GE(num_boxes, 4);
  for (int width = 0; width < 3; ++width)
    for (const int count :
         {num_softcap[width], num_alibi[width], num_bias[width], num_dropout[width]})
      EXPECT_GE(count, 2) << width;
}

}  // namespace
}  // namespace headrace::testing
