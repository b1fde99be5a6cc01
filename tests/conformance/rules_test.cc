// Tests of the rules: results of an implementation with a known fault must fail, those of a correct
// one must pass.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "conformance/catalogue.h"
#include "core/dtype.h"

namespace headrace::testing {
namespace {

using cpu::reference::Row;

struct PlainShape {
  DType dtype = DType::f32;
  std::int64_t batch = 1, seqlen_q = 1, seqlen_k = 1, num_heads = 1, num_kv_heads = 1;
  std::int64_t head_dim = 16;
};

Case plain_case(const PlainShape& s, const CaseName& name) {
  return Case(name, shape(s.dtype, s.seqlen_q, s.seqlen_k, s.head_dim, s.num_heads, s.num_kv_heads,
                          s.batch));
}

// Computes a row with a fault. `row` initially holds the correct result.
using Fault = std::function<void(const RowRef& ref, Row& row)>;

double rounded(DType dtype, double value) {
  std::uint64_t bits = 0;
  store_from_double(dtype, &bits, 0, value);
  return load_as_double(dtype, &bits, 0);
}

void compute(const RowRef& r, Row& row) {
  cpu::reference::attention_row(*r.problem, *r.args, r.sequence, r.batch_idx, r.head, r.q_idx, row);
}

Verdict verdict_of(Case& test_case, const Fault& fault) {
  Result<Call> call = make_call(test_case);
  EXPECT_TRUE(call.ok());
  const Expected expected = expect(test_case, call.value(), true);
  const Problem& p = expected.call.problem;
  Judge judge(p, Arithmetic{}, test_case.largest_v());
  for (const ExpectedRow& one : expected.rows) {
    RowRef ref = one.ref;
    ref.problem = &p;
    ref.args = &expected.call.args;
    Row row = one.exact;
    fault(ref, row);
    RowResult got;
    for (const double x : row.out) got.out.push_back(rounded(dtype_of(p), x));
    got.lse = static_cast<float>(row.lse);
    judge.add_row(ref, one.exact, got, one.low_precision.empty() ? nullptr : &one.low_precision);
  }
  return judge.finish();
}

// Computes the row of a changed problem.
Fault other_problem(std::function<void(Problem&)> change) {
  return [change](const RowRef& ref, Row& row) {
    Problem p = *ref.problem;
    change(p);
    RowRef other = ref;
    other.problem = &p;
    compute(other, row);
  };
}

Fault other_args(std::function<void(AttentionArgs&, const RowRef&)> change) {
  return [change](const RowRef& ref, Row& row) {
    AttentionArgs args = *ref.args;
    change(args, ref);
    RowRef other = ref;
    other.args = &args;
    compute(other, row);
  };
}

// Key tiles with a running maximum; the flags decide whether out and sum are rescaled.
Fault tiled(bool rescale_out, bool rescale_sum) {
  return [=](const RowRef& ref, Row& row) {
    const Problem& p = *ref.problem;
    std::vector<double> out(row.out.size(), 0.0);
    double top = -INFINITY, sum = 0;
    for (std::size_t begin = 0; begin < row.scores.size(); begin += 64) {
      const std::size_t end = std::min(begin + 64, row.scores.size());
      double next = top;
      for (std::size_t j = begin; j < end; ++j) next = std::max(next, row.scores[j]);
      if (next == -INFINITY) continue;
      const double factor = std::exp(top - next);
      if (rescale_out)
        for (double& x : out) x *= factor;
      if (rescale_sum) sum *= factor;
      top = next;
      for (std::size_t j = begin; j < end; ++j) {
        const double weight = std::exp(row.scores[j] - top);
        sum += weight;
        const std::int64_t v = row_offset(ref.args->v, ref.batch_idx, static_cast<std::int64_t>(j),
                                          ref.head / group_size(p));
        for (std::size_t d = 0; d < out.size(); ++d)
          out[d] += weight *
                    load_as_double(dtype_of(p), ref.args->v.data, v + static_cast<std::int64_t>(d));
      }
    }
    for (std::size_t d = 0; d < out.size(); ++d) row.out[d] = out[d] / sum;
    row.lse = top + std::log(sum);
  };
}

// An unmasked tail: a nonexistent key with score 0 and V 0 takes part.
void unmasked_tail(const RowRef&, Row& row) {
  if (row.is_empty) return;
  const double grown = std::exp(row.lse) + 1;
  for (double& x : row.out) x *= std::exp(row.lse) / grown;
  row.lse = std::log(grown);
}

void drop_key(const RowRef& ref, Row& row, std::size_t key) {
  const double kept = 1 - row.softmax[key];
  if (!(row.softmax[key] > 0) || !(kept > 0)) return;
  const std::int64_t v = row_offset(ref.args->v, ref.batch_idx, static_cast<std::int64_t>(key),
                                    ref.head / group_size(*ref.problem));
  for (std::size_t d = 0; d < row.out.size(); ++d) {
    const double value =
        load_as_double(dtype_of(*ref.problem), ref.args->v.data, v + static_cast<std::int64_t>(d));
    row.out[d] = (row.out[d] - row.softmax[key] * value) / kept;
  }
  row.lse += std::log(kept);
}

struct NamedFault {
  const char* name;
  Fault fault;
};

// Faults that apply to any features.
std::vector<NamedFault> general_faults() {
  return {
      {"drops the last key",
       [](const RowRef& r, Row& row) { drop_key(r, row, row.scores.size() - 1); }},
      {"drops the first key", [](const RowRef& r, Row& row) { drop_key(r, row, 0); }},
      {"drops key 64", [](const RowRef& r, Row& row) { drop_key(r, row, 64); }},
      {"scale applied twice",
       other_problem([](Problem& p) { p.softmax_scale *= p.softmax_scale; })},
      {"no scale", other_problem([](Problem& p) { p.softmax_scale = 1; })},
      {"scale off by 1 %", other_problem([](Problem& p) { p.softmax_scale *= 1.01; })},
      {"next KV head", other_args([](AttentionArgs& a, const RowRef& r) {
         const std::int64_t kv_head = r.head / group_size(*r.problem);
         const std::int64_t shift = (kv_head == 0 ? 1 : -1) * a.k.stride_head;
         a.k.data = static_cast<char*>(a.k.data) +
                    shift * static_cast<std::int64_t>(dtype_bytes(dtype_of(*r.problem)));
       })},
      {"KV head = head modulo KV heads",
       [](const RowRef& ref, Row& row) {
         RowRef other = ref;
         other.head = ref.head % ref.problem->num_kv_heads * group_size(*ref.problem);
         AttentionArgs args = *ref.args;
         args.q.data = static_cast<char*>(args.q.data) +
                       (ref.head - other.head) * args.q.stride_head *
                           static_cast<std::int64_t>(dtype_bytes(dtype_of(*ref.problem)));
         other.args = &args;
         compute(other, row);
       }},
  };
}

std::vector<NamedFault> more_faults() {
  return {
      {"unmasked tail", unmasked_tail},
      {"causal by one key more", other_problem([](Problem& p) {
         p.causal = 0;
         p.window_right = 1;
       })},
      {"not causal", other_problem([](Problem& p) { p.causal = 0; })},
      {"causal top-left", other_problem([](Problem& p) { p.causal = HEADRACE_CAUSAL_TOP_LEFT; })},
      {"accumulator not rescaled", tiled(false, true)},
      {"sum not rescaled", tiled(true, false)},
      {"lse in base 2", [](const RowRef&, Row& row) { row.lse /= std::log(2.0); }},
      {"lse without the maximum",
       [](const RowRef&, Row& row) {
         row.lse -= *std::max_element(row.scores.begin(), row.scores.end());
       }},
      {"output not divided",
       [](const RowRef&, Row& row) {
         for (double& x : row.out) x *= std::exp(row.lse);
       }},
      {"V of the neighbouring key", other_args([](AttentionArgs& a, const RowRef& r) {
         a.v.data = static_cast<char*>(a.v.data) +
                    a.v.stride_seq * static_cast<std::int64_t>(dtype_bytes(dtype_of(*r.problem)));
       })},
      {"one output element kept from before", [](const RowRef&, Row& row) { row.out[0] = 0; }},
  };
}

std::vector<NamedFault> feature_faults() {
  return {
      {"no softcap", other_problem([](Problem& p) { p.softcap = 0; })},
      {"no ALiBi", other_problem([](Problem& p) { p.has_alibi = 0; })},
      {"no sinks", other_problem([](Problem& p) { p.has_sinks = 0; })},
      {"sink of the next head",
       other_args([](AttentionArgs& a, const RowRef& r) { a.sinks += r.head == 0 ? 1 : -1; })},
      {"no bias", other_args([](AttentionArgs& a, const RowRef&) { a.bias.data = nullptr; })},
      {"bias of one batch entry",
       other_args([](AttentionArgs& a, const RowRef&) { a.bias.stride_batch = 0; })},
      {"no mask", other_args([](AttentionArgs& a, const RowRef&) { a.mask.data = nullptr; })},
      {"mask of one head",
       other_args([](AttentionArgs& a, const RowRef&) { a.mask.stride_head = 0; })},
      {"no dropout", other_problem([](Problem& p) { p.dropout_p = 0; })},
      {"other dropout offset",
       other_args([](AttentionArgs& a, const RowRef&) { ++a.dropout_offset; })},
      {"dropout without its factor",
       [](const RowRef& r, Row& row) {
         for (double& x : row.out) x /= cpu::reference::keep_factor(*r.problem);
       }},
      {"window by one key more", other_problem([](Problem& p) { ++p.window_left; })},
      {"window by one key less", other_problem([](Problem& p) { --p.window_left; })},
  };
}

class RulesTest : public ::testing::TestWithParam<DType> {
 protected:
  // A causal prefill with grouped heads and one extra row of K and V, for faults that read out of
  // bounds.
  Case make(bool is_causal) {
    CaseName name = named(GetParam(), {});
    Case c = plain_case({.dtype = GetParam(),
                         .seqlen_q = 40,
                         .seqlen_k = 100,
                         .num_heads = 4,
                         .num_kv_heads = 2,
                         .head_dim = 32},
                        name);
    if (is_causal) c.mutable_options().causal = HEADRACE_CAUSAL_BOTTOM_RIGHT;
    --c.mutable_tensors().k.shape[1];
    --c.mutable_tensors().v.shape[1];
    return c;
  }
};

TEST_P(RulesTest, RightResultsPass) {
  for (const bool is_causal : {false, true}) {
    Case c = make(is_causal);
    for (const Fault& fault : {Fault([](const RowRef&, Row&) {}), tiled(true, true)}) {
      const Verdict verdict = verdict_of(c, fault);
      EXPECT_TRUE(verdict.failures.empty()) << verdict.failures.front();
      EXPECT_GT(verdict.num_full_rows, 0);
    }
  }
}

TEST_P(RulesTest, EveryFaultIsCaught) {
  Case c = make(true);
  for (const auto& faults : {general_faults(), more_faults()})
    for (const NamedFault& f : faults)
      EXPECT_FALSE(verdict_of(c, f.fault).failures.empty()) << f.name;
}

TEST_P(RulesTest, FeatureFaultsAreCaught) {
  CaseName name = named(GetParam(), {});
  const auto set = [&](Axis axis, int value) {
    name.values.value[static_cast<std::size_t>(axis)] = static_cast<std::uint8_t>(value);
  };
  set(Axis::alibi, static_cast<int>(Alibi::per_head));
  set(Axis::bias, static_cast<int>(Bias::f32_full));
  set(Axis::mask, static_cast<int>(Mask::full));
  set(Axis::sinks, 1);
  set(Axis::dropout, 1);
  set(Axis::softcap, 2);
  Case c = plain_case({.dtype = GetParam(),
                       .batch = 2,
                       .seqlen_q = 40,
                       .seqlen_k = 100,
                       .num_heads = 4,
                       .num_kv_heads = 2,
                       .head_dim = 32},
                      name);
  c.mutable_options().window_left = 50;
  EXPECT_TRUE(verdict_of(c, [](const RowRef&, Row&) {}).failures.empty());
  for (const NamedFault& f : feature_faults())
    EXPECT_FALSE(verdict_of(c, f.fault).failures.empty()) << f.name;
}

TEST_P(RulesTest, EmptyRowsAreExact) {
  Case c = make(false);
  c.mutable_options().window_left = 0;
  c.mutable_options().window_right = 0;
  c.mutable_options().causal = HEADRACE_CAUSAL_TOP_LEFT;
  c.mutable_tensors().k.shape[1] = c.mutable_tensors().v.shape[1] = 20;
  EXPECT_TRUE(verdict_of(c, [](const RowRef&, Row&) {}).failures.empty());
  const Fault faults[] = {
      [](const RowRef&, Row& row) {
        if (row.is_empty) row.out[3] = 1e-30;
      },
      [](const RowRef&, Row& row) {
        if (row.is_empty) row.out[3] = NAN;
      },
      [](const RowRef&, Row& row) {
        if (row.is_empty) row.out[3] = -0.0;
      },
      [](const RowRef&, Row& row) {
        if (row.is_empty) row.lse = -1e30;
      },
      [](const RowRef&, Row& row) {
        if (row.is_empty) row.lse = INFINITY;
      },
  };
  for (const Fault& fault : faults) {
    if (GetParam() == DType::f16 && &fault == &faults[0]) continue;  // 1e-30 is 0 there
    EXPECT_FALSE(verdict_of(c, fault).failures.empty()) << &fault - faults;
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, RulesTest, ::testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& dtype) { return std::string(dtype_name(dtype.param)); });

// R1 detects an implementation that rounds P to the dtype, like the straightforward one.
TEST(RelativeRule, CatchesRoundedProbabilities) {
  Case c = plain_case({.dtype = DType::bf16,
                       .seqlen_q = 60,
                       .seqlen_k = 200,
                       .num_heads = 2,
                       .num_kv_heads = 2,
                       .head_dim = 64},
                      named(DType::bf16, {}));
  std::vector<double> low;
  const Verdict verdict = verdict_of(c, [&](const RowRef& ref, Row& row) {
    low_precision_row(ref, row, low);
    row.out.assign(low.begin(), low.end());
  });
  ASSERT_TRUE(verdict.judged_mean);
  EXPECT_FALSE(verdict.failures.empty());
}

TEST(Axes, EveryCaseHasANumber) {
  Random random(3);
  for (int i = 0; i < 2000; ++i) {
    const CaseName name = random_case(random);
    const auto again = case_from_id(case_id(name.values, name.seed));
    ASSERT_TRUE(again.has_value());
    EXPECT_EQ(again->values, name.values);
    EXPECT_EQ(again->seed, name.seed);
  }
  EXPECT_FALSE(case_from_id(~std::uint64_t{0}).has_value());
}

TEST(GuardedBuffer, DetectsWritesOutsideTheView) {
  GuardedBuffer memory(100, Guard::after, kSentinelByte);
  EXPECT_EQ(memory.find_other_than(kSentinelByte), -1);
  memory.data()[-1] = 0;
  EXPECT_GE(memory.find_other_than(kSentinelByte), 0);
}

TEST(GuardedBufferDeathTest, GuardPagesFault) {
  GuardedBuffer after(100, Guard::after, 0), before(100, Guard::before, 0),
      empty(0, Guard::after, 0);
  volatile unsigned char* end = after.data() + 100;
  volatile unsigned char* front = before.data() - 1;
  volatile unsigned char* nothing = empty.data();
  EXPECT_DEATH(*end = 1, "");
  EXPECT_DEATH(*front = 1, "");
  EXPECT_DEATH(*nothing = 1, "");
  after.make_read_only();
  volatile unsigned char* inside = after.data();
  EXPECT_DEATH(*inside = 1, "");
}

}  // namespace
}  // namespace headrace::testing
