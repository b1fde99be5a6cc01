// The merge of attention states of every instruction set of this machine, over dtypes, numbers of
// states, shapes and layouts, against double; and its errors.
#include "ops/merge_states.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "backends/cpu/elementwise/elementwise.h"
#include "tests/support/every_rule.h"
#include "tests/support/golden_texts.h"
#include "tests/support/instruction_sets.h"
#include "tests/support/merge_case.h"

namespace headrace {
namespace {

using testing::Doubles;
using testing::MergeCall;
using testing::MergeCase;

const std::vector<const cpu::ElementwiseOps*> kRunnable =
    testing::runnable(cpu::all_elementwise_ops());

void expect_runs(MergeCall& call) {
  const Status bad = merge_states(call.views().tensors, nullptr);
  ASSERT_FALSE(bad) << bad->message;
}

TEST(MergeStates, IsTheWeightedMeanOfTheStates) {
  testing::for_merge_cases([](const MergeCase& c) {
    MergeCall call(c);
    const MergeCall::Expected want = call.expected();
    expect_runs(call);
    call.expect_merged(want);
  });
}

TEST(MergeStates, IsTheSameOnEveryInstructionSet) {
  testing::for_merge_cases([](const MergeCase& c) {
    std::vector<std::vector<unsigned char>> results;
    for (const cpu::ElementwiseOps* ops : kRunnable) {
      MergeCall call(c);
      Result<MergeStatesArgs> args = validate_merge_states(call.views().tensors);
      ASSERT_TRUE(args.ok());
      ops->merge_states(args.value(), {0, num_rows(args.value())});
      results.push_back(call.out().bytes());
      results.back().insert(results.back().end(), call.lse().bytes().begin(),
                            call.lse().bytes().end());
      ASSERT_EQ(results.back(), results.front()) << ops->name << ' ' << text_of(c);
    }
  });
}

// Enough rows for many tasks: a row's bits are those of a call of its own.
TEST(MergeStates, BitsOfARowDependOnItAlone) {
  MergeCase c;
  c.num_states = 5;
  c.seqlen = 700;
  c.head_dim_v = 33;
  MergeCall whole(c), alone(c);
  expect_runs(whole);
  MergeCall::Views v = alone.views();
  for (std::int64_t row = c.seqlen - 1; row >= 0; --row) {
    const auto narrow = [&](headrace_tensor& x, int axis, const headrace_tensor& all) {
      x = *TensorView(all).slice(axis, row, row + 1);
    };
    MergeCall::Views one = v;
    for (std::size_t i = 0; i < v.outs.size(); ++i) {
      narrow(one.outs[i], 1, v.outs[i]);
      narrow(one.lses[i], 2, v.lses[i]);
    }
    one.tensors.outs = one.outs.data();
    one.tensors.lses = one.lses.data();
    narrow(one.tensors.out, 1, v.tensors.out);
    narrow(one.tensors.lse, 2, v.tensors.lse);
    const Status bad = merge_states(one.tensors, nullptr);
    ASSERT_FALSE(bad) << bad->message;
  }
  EXPECT_EQ(alone.out().bytes(), whole.out().bytes());
  EXPECT_EQ(alone.lse().bytes(), whole.lse().bytes());
}

// One row of four elements with the states (out, lse); returns the element and the lse.
struct Merged {
  double out, lse;
};
Merged merge_of(const std::vector<std::pair<double, double>>& states) {
  MergeCase c;
  c.num_states = static_cast<int>(states.size());
  c.seqlen = c.num_heads = 1;
  c.head_dim_v = 4;
  MergeCall call(c);
  for (int i = 0; i < c.num_states; ++i) {
    const auto [out, lse] = states[static_cast<std::size_t>(i)];
    call.set_state(i, Doubles(4, out), {lse});
  }
  expect_runs(call);
  return {call.out().values()[3], call.lse().values()[0]};
}

TEST(MergeStates, StatesWithoutKeysChangeNoBit) {
  const Merged plain = merge_of({{0.3, 1.25}, {-0.7, 0.5}});
  for (const auto& states :
       {std::vector<std::pair<double, double>>{{NAN, testing::kNoKeys}, {0.3, 1.25}, {-0.7, 0.5}},
        {{0.3, 1.25}, {NAN, testing::kNoKeys}, {-0.7, 0.5}},
        {{0.3, 1.25}, {-0.7, 0.5}, {NAN, testing::kNoKeys}}}) {
    const Merged got = merge_of(states);
    EXPECT_EQ(got.out, plain.out);
    EXPECT_EQ(got.lse, plain.lse);
  }
  const Merged empty = merge_of({{NAN, testing::kNoKeys}, {1, testing::kNoKeys}});
  EXPECT_EQ(empty.out, 0);
  EXPECT_FALSE(std::signbit(empty.out));
  EXPECT_EQ(empty.lse, testing::kNoKeys);
  const Merged one = merge_of({{0.3, 1.25}});
  EXPECT_EQ(one.out, static_cast<double>(0.3f));
  EXPECT_EQ(one.lse, 1.25);
}

TEST(MergeStates, NanAndInfinityPropagate) {
  for (const auto& states : {std::vector<std::pair<double, double>>{{1, NAN}},
                             {{1, NAN}, {2, 0}},
                             {{2, 0}, {1, NAN}},
                             {{1, NAN}, {NAN, testing::kNoKeys}},
                             {{NAN, testing::kNoKeys}, {1, NAN}, {2, 0}}}) {
    const Merged got = merge_of(states);
    EXPECT_TRUE(std::isnan(got.out)) << got.out;
    EXPECT_TRUE(std::isnan(got.lse)) << got.lse;
  }
  const Merged nan_out = merge_of({{NAN, 0}, {2, 0}});
  EXPECT_TRUE(std::isnan(nan_out.out));
  EXPECT_FALSE(std::isnan(nan_out.lse));
  const Merged infinite = merge_of({{1, HUGE_VAL}, {2, 0}, {3, HUGE_VAL}});
  EXPECT_EQ(infinite.out, 2);
  EXPECT_EQ(infinite.lse, HUGE_VAL);
}

// ---- errors

struct Call {
  MergeCall call{MergeCase{.num_states = 3}};
  MergeCall::Views v = call.views();
  headrace_merge_states_tensors& t = v.tensors;
  Stream stream = nullptr;
};

struct Bad {
  std::function<void(Call&)> break_it;
  std::vector<std::string> parts;
};

void expect_refused(const Bad& bad, testing::GoldenTexts& texts) {
  Call c;
  const auto out = c.call.out().bytes(), lse = c.call.lse().bytes();
  bad.break_it(c);
  const Status status = merge_states(c.t, c.stream);
  ASSERT_TRUE(status.has_value()) << bad.parts[0];
  EXPECT_EQ(status->code, ErrorCode::invalid_argument) << status->message;
  texts.add(status->message);
  EXPECT_EQ(status->message.find(bad.parts[0]), 0u) << status->message;
  for (const std::string& part : bad.parts)
    EXPECT_NE(status->message.find(part), std::string::npos)
        << '"' << part << "\" is not in: " << status->message;
  EXPECT_EQ(c.call.out().bytes(), out) << bad.parts[0] << ": something was written";
  EXPECT_EQ(c.call.lse().bytes(), lse) << bad.parts[0] << ": something was written";
}

TEST(MergeStatesErrors, EveryRuleOfEveryTensor) {
  struct Whole : Call {
    std::vector<testing::Role> roles() {
      std::vector<testing::Role> all = {{"out", &t.out, true, true}, {"lse", &t.lse, false, true}};
      for (std::size_t i = 0; i < v.outs.size(); ++i) {
        const std::string idx = '[' + std::to_string(i) + ']';
        all.push_back({"outs" + idx, &v.outs[i], true, false, i == 0});
        all.push_back({"lses" + idx, &v.lses[i], false, false, i == 0});
      }
      return all;
    }
    Status run() { return merge_states(t, stream); }
    auto results() { return std::pair(call.out().bytes(), call.lse().bytes()); }
  };
  testing::expect_every_rule([] { return std::make_unique<Whole>(); });
}

TEST(MergeStatesErrors, NumbersShapesDtypesAndStrides) {
  testing::GoldenTexts texts("ops.txt");
  const Bad cases[] = {
      {[](Call& c) { c.t.num_states = 0; }, {"num_states=0", "1 to 128"}},
      {[](Call& c) { c.t.num_states = 129; }, {"num_states=129", "in several calls"}},
      {[](Call& c) { c.t.outs = nullptr; }, {"outs=NULL", "an array of num_states=3"}},
      {[](Call& c) { c.t.lses = nullptr; }, {"lses=NULL"}},
      {[](Call& c) { c.v.outs[0].rank = 5; }, {"outs[0].rank=5", "must be 3 or 4"}},
      {[](Call& c) { c.v.outs[1].rank = 3; }, {"outs[1].rank=3", "must be 4"}},
      {[](Call& c) { c.v.outs[0].dtype = HEADRACE_F64; }, {"outs[0].dtype=f64", "convert"}},
      {[](Call& c) { c.v.outs[2].dtype = HEADRACE_F16; },
       {"outs[2].dtype=f16", "must be f32, as outs[0]"}},
      {[](Call& c) { c.v.outs[1].shape[2] = 1; }, {"outs[1].shape[2]=1", "outs[0].shape[2]=2"}},
      {[](Call& c) { c.v.outs[0].shape[3] = 577; }, {"outs[0].shape[3]=577", "1 to 576"}},
      {[](Call& c) { c.v.outs[0].strides[3] = 2; }, {"outs[0].strides[3]=2", "must be 1"}},
      {[](Call& c) { c.v.outs[2].strides[1] = 8; }, {"outs[2].strides[1]=8", "one memory layout"}},
      {[](Call& c) { c.v.outs[2].data = nullptr; }, {"outs[2].data=NULL"}},
      {[](Call& c) { c.v.lses[1].dtype = HEADRACE_BF16; }, {"lses[1].dtype=bf16", "must be f32"}},
      {[](Call& c) { c.v.lses[1].rank = 2; }, {"lses[1].rank=2", "must be 3"}},
      {[](Call& c) { std::swap(c.v.lses[0].shape[1], c.v.lses[0].shape[2]); },
       {"lses[0].shape[1]=3", "num_heads=2 of outs[0]", "[batch, num_heads, seqlen]"}},
      {[](Call& c) { c.v.lses[2].strides[1] = 4; }, {"lses[2].strides[1]=4", "lses[0]"}},
      {[](Call& c) { c.t.out = TensorView(); }, {"out.rank=0", "must be 4"}},
      {[](Call& c) { c.t.out.shape[1] = 2; }, {"out.shape[1]=2", "outs[0].shape[1]=3"}},
      {[](Call& c) { c.t.out.dtype = HEADRACE_I64; }, {"out.dtype=i64"}},
      {[](Call& c) { c.t.lse.shape[2] = 2; }, {"lse.shape[2]=2", "seqlen=3 of outs[0]"}},
      {[](Call& c) { c.v.outs[1].device_type = HEADRACE_CUDA; }, {"outs[1].device_type=1"}},
      {[](Call& c) { c.v.lses[1].device_type = HEADRACE_CUDA; }, {"lses[1].device_type=1"}},
      {[](Call& c) { c.t.lse.device_type = HEADRACE_CUDA; }, {"lse.device_type=1"}},
      {[](Call& c) { c.stream = &c; }, {"stream=", "NULL on CPU"}},
  };
  for (const Bad& bad : cases) expect_refused(bad, texts);
}

TEST(MergeStatesErrors, ResultsThatOverlap) {
  testing::GoldenTexts texts("ops.txt");
  const Bad cases[] = {
      {[](Call& c) { c.t.out.strides[1] = 0; }, {"out overlaps itself"}},
      {[](Call& c) { c.t.lse.strides[2] = 0; }, {"lse overlaps itself"}},
      {[](Call& c) { c.t.out.data = static_cast<float*>(c.v.outs[2].data) + 1; },
       {"out overlaps outs[2]", "may be the same view"}},
      {[](Call& c) { c.t.out.data = c.v.outs[1].data, c.t.out.dtype = HEADRACE_BF16; },
       {"out overlaps outs[1]"}},
      {[](Call& c) { c.t.lse.data = c.v.outs[1].data; }, {"lse overlaps outs[1]"}},
      {[](Call& c) { c.t.lse.data = c.t.out.data; }, {"out overlaps lse"}},
      {[](Call& c) {
         std::swap(c.t.lse.strides[1], c.t.lse.strides[2]), c.t.lse.data = c.v.lses[0].data;
       },
       {"lse overlaps lses[0]"}},
  };
  for (const Bad& bad : cases) expect_refused(bad, texts);
}

TEST(MergeStatesErrors, EmptyRowsAreNoError) {
  for (const bool is_ragged : {false, true}) {
    MergeCase c;
    c.seqlen = 0;
    c.is_ragged = is_ragged;
    MergeCall call(c);
    expect_runs(call);
  }
}

}  // namespace
}  // namespace headrace
