// The named grids hold what their titles say, plain cases are taken by kernels for plain scores,
// and parts of a case are where they should be.
#include "conformance/backward_grids.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "attention/validate.h"
#include "conformance/backward_checks.h"
#include "conformance/slices.h"
#include "core/problem.h"

namespace headrace::testing {
namespace {

const NamedGrid& grid(std::string_view id) {
  return *std::find_if(backward_grids().begin(), backward_grids().end(),
                       [&](const NamedGrid& one) { return one.id == id; });
}

TEST(NamedGrids, TheWholeTierIsEveryCase) {
  for (const NamedGrid& one : backward_grids()) {
    const std::vector<GridCase> cases = one.cases();
    EXPECT_EQ(sample_of(one, cases, Tier::whole).size(), cases.size()) << one.id;
  }
  EXPECT_EQ(grid("B1").cases().size(), 10u * 11 * 3 * 3 * 3);
  EXPECT_EQ(grid("B1s").cases().size(), 10u * 11 * 3 * 3 * 3 * 7);
}

TEST(NamedGrids, SamplesAreFixedAndWithoutDoubles) {
  for (const NamedGrid& one : backward_grids()) {
    const std::vector<GridCase> cases = one.cases();
    for (const Tier tier : {Tier::small, Tier::full}) {
      const std::size_t wanted = tier == Tier::small ? one.num_small : one.num_full;
      const std::vector<std::size_t> sample = sample_of(one, cases, tier);
      EXPECT_EQ(sample, sample_of(one, cases, tier));
      EXPECT_EQ(sample.size(), wanted == 0 ? cases.size() : wanted) << one.id;
      const std::set<std::size_t> distinct(sample.begin(), sample.end());
      EXPECT_EQ(distinct.size(), sample.size()) << one.id;
    }
  }
}

TEST(NamedGrids, SamplesSeeTheAxes) {
  const auto seen = [](const char* id, Tier tier, const std::function<std::int64_t(GridCase)>& of) {
    const std::vector<GridCase> cases = grid(id).cases();
    std::set<std::int64_t> values;
    for (const std::size_t i : sample_of(grid(id), cases, tier)) values.insert(of(cases[i]));
    return values.size();
  };
  const auto lengths = [](const GridCase& one) {
    return one.shape.seqlen_q * 10000 + one.shape.seqlen_k;
  };
  const auto dim = [](const GridCase& one) { return one.shape.head_dim; };
  const auto scores = [](const GridCase& one) {
    const AxisValues& values = one.name.values;
    return values[Axis::softcap] + 2 * values[Axis::alibi] + 4 * values[Axis::dropout];
  };
  for (const char* id : {"B1", "B1s"}) {
    EXPECT_EQ(seen(id, Tier::full, lengths), 10u) << id;
    EXPECT_GE(seen(id, Tier::full, dim), 9u) << id;  // of 11
  }
  EXPECT_EQ(seen("B1s", Tier::small, scores), 7u);
  EXPECT_EQ(seen("B1g", Tier::small, [](const GridCase& one) { return one.shape.num_heads; }), 6u);
}

TEST(NamedGrids, CasesAreAcceptedAndHaveTheirZeros) {
  for (const NamedGrid& one : backward_grids()) {
    const std::vector<GridCase> cases = one.cases();
    for (std::size_t i = 0; i < cases.size(); i += cases.size() / 8 + 1) {
      if (cost_of(cases[i].shape) > 1e6) continue;
      Lab lab(cases[i].name, cases[i].shape);
      if (cases[i].prepare != nullptr) cases[i].prepare(lab);
      lab.test_case.make_gradients();
      const Result<Problem> problem = backward_problem(lab.test_case);
      ASSERT_TRUE(problem.ok()) << text_of(cases[i]);
      if (one.has_zeros) {
        EXPECT_GT(expected_gradients_of(lab.test_case, problem.value(), false).num_zeros(), 0);
      }
    }
  }
}

// What keeps a kernel of tensor cores for plain scores from a problem.
bool is_taken(const Problem& p) {
  const bool is_16_bit = dtype_of(p) == DType::f16 || dtype_of(p) == DType::bf16;
  return is_16_bit && p.head_dim % 8 == 0 && p.head_dim_v % 8 == 0 &&
         std::max(p.head_dim, p.head_dim_v) <= 256 && p.alignment >= kWholeAlignment &&
         !p.has_negative_strides && p.softmax_scale > 0 && p.seqlen_q > 0 && p.seqlen_k > 0 &&
         (!p.is_ragged || (p.total_q > 0 && p.total_k > 0));
}

TEST(PlainCases, AreEnoughForAKernelOfPlainScores) {
  const std::vector<CaseName> cases = plain_cases(kPlainSmall, 1);
  const auto count = std::count_if(cases.begin(), cases.end(), [](const CaseName& name) {
    Case test_case(name);
    test_case.make_gradients();
    const Problem p = backward_problem(test_case).value();
    return is_taken(p) && !has_general_scores(p);
  });
  EXPECT_GE(count, 60);
}

// Each with the heads of a group, in ragged batches, or with a gradient of its own.
TEST(ScoredCases, HaveEveryKindOfScores) {
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

// By the copy engine, for more than one warp.
bool can_be_copied(const ScoreOperand& bias, const Problem& p) {
  return bias.dtype == dtype_of(p) && bias.stride_k == 1 && bias.stride_q > 0 &&
         (bias.stride_batch | bias.stride_head | bias.stride_q) % 8 == 0 &&
         reinterpret_cast<std::uintptr_t>(bias.data) % 16 == 0 && p.seqlen_q > 16;
}

// Every feature at every width of its kernels, and a bias that the copy engine can bring.
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

TEST(Slices, APartOfAResultIsWhereItsViewPoints) {
  unsigned char memory[24];  // [4, 3, 2] bytes, the first axis backwards
  headrace_tensor whole{};
  whole.data = memory + 18;
  whole.dtype = HEADRACE_BOOL;
  whole.rank = 3;
  std::copy_n(std::array<std::int64_t, 3>{4, 3, 2}.begin(), 3, whole.shape);
  std::copy_n(std::array<std::int64_t, 3>{-6, 2, 1}.begin(), 3, whole.strides);
  std::vector<unsigned char> bytes(24);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i);
  const headrace_tensor rows = alone(whole, 0, 1, 2);
  EXPECT_EQ(rows.rank, 4);
  EXPECT_EQ(rows.shape[0], 1);
  EXPECT_EQ(part_of(whole, bytes, rows), std::vector<unsigned char>(&bytes[6], &bytes[18]));
  EXPECT_EQ(part_of(whole, bytes, sliced(whole, 1, 2, 1)),
            (std::vector<unsigned char>{4, 5, 10, 11, 16, 17, 22, 23}));
}

}  // namespace
}  // namespace headrace::testing
