// The named grids match their titles, and slices of a case are at the right addresses.
#include "conformance/backward_grids.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "conformance/backward_checks.h"
#include "conformance/slices.h"
#include "core/problem.h"

namespace headrace::testing {
namespace {

const NamedGrid& grid(std::string_view id) {
  return *std::find_if(backward_grids().begin(), backward_grids().end(),
                       [&](const NamedGrid& one) { return one.id == id; });
}

TEST(NamedGrids, TheWholeTierRunsEveryCase) {
  for (const NamedGrid& one : backward_grids()) {
    const std::vector<GridCase> cases = one.cases();
    EXPECT_EQ(sample_of(one, cases, Tier::whole).size(), cases.size()) << one.id;
  }
  EXPECT_EQ(grid("B1").cases().size(), 10u * 11 * 3 * 3 * 3);
  EXPECT_EQ(grid("B1s").cases().size(), 10u * 11 * 3 * 3 * 3 * 7);
}

TEST(NamedGrids, SamplesAreFixedAndUnique) {
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

TEST(NamedGrids, SamplesCoverTheAxes) {
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

TEST(NamedGrids, CasesAreValidAndHaveTheirZeros) {
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

TEST(Slices, ASliceOfAResultMatchesItsView) {
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
