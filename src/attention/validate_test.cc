// Valid calls pass validation, with defaults resolved.
#include "attention/validate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "attention/validate_fixture.h"

namespace headrace {
namespace {

void expect_valid(const Call& call, const char* name) {
  const Status status = call.check();
  EXPECT_FALSE(status.has_value()) << name << ": " << status->message;
}

TEST(Validate, AcceptsEveryFeature) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
    Call c = Call::dense(dtype);
    const DType result = dtype == DType::f64 ? DType::f64 : DType::f32;
    c.t.lse = c.fresh(result, {kBatch, kHeads, kSeqlenQ});
    c.t.probs = c.fresh(result, {kBatch, kHeads, kSeqlenQ, kSeqlenK});
    c.t.bias = c.fresh(dtype, {1, kHeads, kSeqlenQ, 1});
    c.t.mask = c.fresh(DType::boolean, {kBatch, 1, 1, kSeqlenK});
    c.t.tree_mask = c.fresh(DType::u32, {kBatch, kSeqlenQ, 3});
    c.t.alibi_slopes = c.fresh(DType::f32, {kBatch, kHeads});
    c.t.sinks = c.fresh(DType::f32, {kHeads});
    expect_valid(c, dtype_name(dtype));
    c.t.bias = c.fresh(DType::f32, {kBatch, 1, 1, kSeqlenK});
    expect_valid(c, "f32 bias");
  }
  expect_valid(Call::ragged(), "ragged");
}

TEST(Validate, ResolvesDefaults) {
  Call c = Call::dense();
  c.o.window_left = INT64_MAX;  // hides nothing
  c.o.window_right = 3;
  c.o.strict_rows = 5;
  const Problem p = validate(c.t, c.o).value();
  EXPECT_DOUBLE_EQ(p.softmax_scale, 1 / std::sqrt(8.0));
  EXPECT_EQ(p.window_left, -1);
  EXPECT_EQ(p.window_right, 3);
  EXPECT_EQ(p.strict_rows, 1);
  EXPECT_EQ(p.bias_dtype, -1);
  EXPECT_EQ(p.head_dim_v, kDimV);
}

TEST(Validate, AcceptsEmptyBatches) {
  const auto shaped = [](std::int64_t batch, std::int64_t seqlen_q, std::int64_t seqlen_k,
                         std::int64_t heads, std::int64_t kv_heads) {
    Call c = Call::dense();
    c.t.q = TensorView(nullptr, DType::f32, {batch, seqlen_q, heads, kDim});
    c.t.k = TensorView(nullptr, DType::f32, {batch, seqlen_k, kv_heads, kDim});
    c.t.v = TensorView(nullptr, DType::f32, {batch, seqlen_k, kv_heads, kDimV});
    c.t.out = TensorView(nullptr, DType::f32, {batch, seqlen_q, heads, kDimV});
    for (auto* view : {&c.t.q, &c.t.k, &c.t.v, &c.t.out}) {
      const TensorView as_view(*view);
      if (as_view.num_elements() != 0)
        *view =
            c.fresh(DType::f32, {view->shape[0], view->shape[1], view->shape[2], view->shape[3]});
    }
    return c;
  };
  expect_valid(shaped(0, 5, 7, 4, 2), "batch 0");
  expect_valid(shaped(2, 0, 7, 4, 2), "seqlen_q 0");
  expect_valid(shaped(2, 5, 0, 4, 2), "seqlen_k 0");
  expect_valid(shaped(2, 5, 7, 0, 0), "heads 0");
  Call c = Call::ragged();
  for (auto* view : {&c.t.q, &c.t.k, &c.t.v, &c.t.out}) view->shape[0] = 0;
  c.set_lengths(c.t.cu_seqlens_q, {0, 0, 0, 0});
  c.set_lengths(c.t.cu_seqlens_k, {0, 0, 0, 0});
  c.o.max_seqlen_q = c.o.max_seqlen_k = 0;
  expect_valid(c, "total 0");
  c.t.cu_seqlens_q.shape[0] = c.t.cu_seqlens_k.shape[0] = 1;
  expect_valid(c, "ragged batch 0");
}

// One bit for each query, in whole words.
TEST(Validate, TreeMasksHaveABitForEveryQuery) {
  for (std::int64_t seqlen = 1; seqlen <= 129; ++seqlen) {
    for (const bool is_ragged : {false, true}) {
      const auto with_words = [&](std::int64_t words) {
        Call c;
        c.t.struct_size = sizeof c.t;
        for (auto* view : {&c.t.q, &c.t.k, &c.t.v, &c.t.out})
          *view = is_ragged ? c.fresh(DType::f32, {seqlen, 1, 8})
                            : c.fresh(DType::f32, {1, seqlen, 1, 8});
        c.t.tree_mask = is_ragged ? c.fresh(DType::u32, {seqlen, words})
                                  : c.fresh(DType::u32, {1, seqlen, words});
        if (!is_ragged) return c;
        for (auto* view : {&c.t.cu_seqlens_q, &c.t.cu_seqlens_k}) {
          *view = c.fresh(DType::i32, {2});
          Call::set_lengths(*view, {0, static_cast<std::int32_t>(seqlen)});
        }
        c.o.max_seqlen_q = c.o.max_seqlen_k = seqlen;
        return c;
      };
      const std::int64_t needed = (seqlen + 31) / 32;
      expect_valid(with_words(needed), "enough words");
      EXPECT_TRUE(with_words(needed - 1).check().has_value())
          << seqlen << (is_ragged ? " ragged" : "");
    }
  }
}

// max_seqlen bounds each length, whatever its relation to the number of rows.
TEST(Validate, NoSequenceIsLongerThanMaxSeqlen) {
  constexpr std::int32_t kTotalQ = 10, kTotalK = 12;  // of Call::ragged()
  for (const bool is_q : {true, false}) {
    const std::int32_t total = is_q ? kTotalQ : kTotalK;
    for (std::int32_t max_seqlen = 1; max_seqlen <= total + 2; ++max_seqlen) {
      for (std::int32_t first = 0; first <= total; ++first) {
        for (std::int32_t second = 0; second <= total - first; ++second) {
          Call c = Call::ragged();
          (is_q ? c.o.max_seqlen_q : c.o.max_seqlen_k) = max_seqlen;
          Call::set_lengths(is_q ? c.t.cu_seqlens_q : c.t.cu_seqlens_k,
                            {0, first, first + second, total});
          const std::int32_t longest = std::max({first, second, total - first - second});
          EXPECT_EQ(c.check().has_value(), longest > max_seqlen)
              << (is_q ? "q" : "k") << ": lengths " << first << ", " << second << " of " << total
              << ", max_seqlen " << max_seqlen;
        }
      }
    }
  }
}

// Strides of axes of size 1 are ignored and must not reach kernels.
TEST(Validate, IgnoresStridesOfSizeOneAxes) {
  Call c = Call::dense();
  c.t.q = c.fresh(DType::f32, {1, 1, 1, 1});
  c.t.k = c.fresh(DType::f32, {1, 1, 1, 1});
  c.t.v = c.fresh(DType::f32, {1, 1, 1, 1});
  c.t.out = c.fresh(DType::f32, {1, 1, 1, 1});
  c.t.bias = c.fresh(DType::f32, {1, 1, 1, 1});
  for (auto* view : {&c.t.q, &c.t.k, &c.t.v, &c.t.out, &c.t.bias})
    for (auto& stride : view->strides) stride = INT64_MAX - 3;
  expect_valid(c, "size 1");
  const AttentionArgs args = make_args(validate(c.t, c.o).value(), c.t, c.o);
  EXPECT_EQ(args.q.stride_batch, 0);
  EXPECT_EQ(args.out.stride_head, 0);
  EXPECT_EQ(args.bias.stride_k, 0);
}

// Inputs may broadcast, have negative strides and share memory; out may be a slice between them.
TEST(Validate, AcceptsViewsOfPackedBuffers) {
  Call c = Call::dense();
  TensorView packed = c.fresh(DType::f32, {kBatch, kSeqlenQ, 4, kHeads, kDim});
  c.t.q = *packed.select(2, 0);
  c.t.k = *packed.select(2, 1);
  c.t.v = *packed.select(2, 2);
  c.t.out = *packed.select(2, 3);
  expect_valid(c, "packed [batch, seqlen, 4, heads, dim]");
  packed = c.fresh(DType::f32, {kBatch, kSeqlenQ, 8 + 2 + 2 + 8, kDim});
  c.t.q = *packed.slice(2, 0, 8);
  c.t.k = *packed.slice(2, 8, 10);
  c.t.v = *packed.slice(2, 10, 12);
  c.t.out = *packed.slice(2, 12, 20);
  expect_valid(c, "packed heads");
  c.t.out = *packed.slice(2, 11, 19);
  EXPECT_TRUE(c.check().has_value()) << "one head of v is overwritten";
  c.t.out = *packed.slice(2, 19, 11, -1);
  expect_valid(c, "backwards");
  packed = c.fresh(DType::f32, {kHeads, kDim * 2, kBatch, kSeqlenQ});
  c = Call::dense();
  c.t.k = c.t.v = c.fresh(DType::f32, {kBatch, kSeqlenK, kKvHeads, kDim});
  c.t.out = c.fresh(DType::f32, {kBatch, kSeqlenQ, kHeads, kDim});
  c.t.k.strides[1] = c.t.v.strides[1] = 0;
  expect_valid(c, "k is v, broadcast along keys");
}

TEST(CheckSameProblem, NamesWhatDiffers) {
  const Problem planned = validate(Call::dense().t, default_options()).value();
  Problem call = planned;
  EXPECT_FALSE(check_same_problem(planned, call).has_value());
  call.seqlen_k = 9;
  const Status status = check_same_problem(planned, call);
  ASSERT_TRUE(status.has_value());
  EXPECT_NE(status->message.find("seqlen_k=9 but the plan was made for seqlen_k=7"),
            std::string::npos)
      << status->message;
}

// The lowest set bit of every address and stride; axes of size 1 do not count.
TEST(Validate, FindsTheAlignmentOfTheOperands) {
  Call c = Call::dense();
  const auto layout = [&c] { return validate(c.t, default_options()).value(); };
  EXPECT_EQ(layout().alignment, 8) << "rows of v are 6 floats";
  c.t.v = c.fresh(DType::f32, {kBatch, kSeqlenK, kKvHeads, 8});
  c.t.out = c.fresh(DType::f32, {kBatch, kSeqlenQ, kHeads, 8});
  EXPECT_EQ(layout().alignment, 16);
  c.t.q.strides[1] += 1;
  EXPECT_EQ(layout().alignment, 4);
  EXPECT_FALSE(layout().has_negative_strides);
  const Problem planned = layout();
  c.t.q.strides[1] -= 1;
  EXPECT_FALSE(check_same_problem(planned, layout()).has_value()) << "more aligned than planned";
}

TEST(CheckSameProblem, RequiresTheAlignmentOfThePlan) {
  Problem planned = validate(Call::dense().t, default_options()).value();
  planned.alignment = 16;
  Problem call = planned;
  call.alignment = 8;
  ASSERT_TRUE(check_same_problem(planned, call).has_value());
  EXPECT_NE(check_same_problem(planned, call)->message.find("only 8 bytes"), std::string::npos);
  call = planned;
  call.has_negative_strides = 1;
  EXPECT_TRUE(check_same_problem(planned, call).has_value());
}

// Any value but 0 sets a flag; plans compare flags and kernels read them, so all are 1 then.
TEST(CheckProblem, EveryFlagIsZeroOrOne) {
  for (std::int32_t Problem::*flag :
       {&Problem::has_alibi, &Problem::has_mask, &Problem::has_sinks, &Problem::has_lse,
        &Problem::has_probs, &Problem::has_seqused_k, &Problem::has_dlse, &Problem::has_dbias,
        &Problem::has_dsinks, &Problem::deterministic, &Problem::strict_fallback,
        &Problem::strict_rows, &Problem::checked, &Problem::has_negative_strides}) {
    Problem p = default_problem();
    const bool is_gradient =
        flag == &Problem::has_dlse || flag == &Problem::has_dbias || flag == &Problem::has_dsinks;
    if (is_gradient) p.phase = HEADRACE_BACKWARD;
    if (is_gradient || flag == &Problem::has_seqused_k) p.has_lse = 1;
    if (flag == &Problem::has_dbias) p.bias_dtype = HEADRACE_F32;
    if (flag == &Problem::has_dsinks) p.has_sinks = 1;
    for (const std::int32_t value : {1, 2, -1}) {
      p.*flag = value;
      const Result<Problem> checked = check_problem(p);
      ASSERT_TRUE(checked.ok()) << checked.failure().message;
      EXPECT_EQ(checked.value().*flag, 1) << value;
      p.*flag = 0;
      const Result<Problem> without = check_problem(p);
      if (without.ok()) {
        EXPECT_EQ(without.value().*flag, 0);
      }
    }
  }
}

// Kernels' work grows with max_seqlen, which the number of rows bounds, too. max_seqlen_k stays
// where it is the number of columns of a bias or mask.
TEST(CheckProblem, ClampsMaxSeqlenToTheNumberOfRows) {
  const auto scores = [](Call& c, DType dtype) {
    return c.fresh(dtype, {1, 10, c.o.max_seqlen_k});
  };
  using Give = std::function<void(Call&)>;
  const struct {
    const char* name;
    bool has_columns;
    Give give;
  } features[] = {
      {"none", false, [](Call&) {}},
      {"lse", false,
       [](Call& c) {
         c.t.lse = c.fresh(DType::f32, {kHeads, 10});
       }},
      {"alibi", false, [](Call& c) { c.t.alibi_slopes = c.fresh(DType::f32, {kHeads}); }},
      {"sinks", false, [](Call& c) { c.t.sinks = c.fresh(DType::f32, {kHeads}); }},
      {"softcap", false, [](Call& c) { c.o.softcap = 2; }},
      {"dropout", false, [](Call& c) { c.o.dropout_p = 0.5; }},
      {"causal", false, [](Call& c) { c.o.causal = HEADRACE_CAUSAL_BOTTOM_RIGHT; }},
      {"tree_mask", false,
       [](Call& c) {
         c.t.tree_mask = c.fresh(DType::u32, {10, 1});
         c.t.tree_mask.shape[1] = INT32_MAX / 32 + 1;
       }},
      {"bias", true, [&](Call& c) { c.t.bias = scores(c, DType::f32); }},
      {"mask", true, [&](Call& c) { c.t.mask = scores(c, DType::boolean); }},
      {"bias and mask", true, [&](Call& c) {
         c.t.bias = scores(c, DType::f32);
         c.t.mask = scores(c, DType::boolean);
       }}};
  for (const auto& [name, has_columns, give] : features)
    for (const std::int64_t max_q : {7, 9, 10, 11, 100, INT32_MAX})
      for (const std::int64_t max_k : {7, 11, 12, 13, 100}) {
        SCOPED_TRACE(format_text("{}, {} and {}", name, max_q, max_k));
        Call c = Call::ragged();  // 10 rows of q, 12 of k
        c.o.max_seqlen_q = max_q;
        c.o.max_seqlen_k = max_k;
        give(c);
        expect_valid(c, name);
        const Problem p = validate(c.t, c.o).value();
        EXPECT_EQ(p.seqlen_q, std::min<std::int64_t>(max_q, 10));
        EXPECT_EQ(p.seqlen_k, has_columns ? max_k : std::min<std::int64_t>(max_k, 12));
      }
}

// Checking a Problem of arbitrary contents is well defined.
TEST(CheckProblem, ExtremeSizesNeverOverflow) {
  const std::int64_t values[] = {0, 1, -1, 577, std::int64_t{1} << 40, INT64_MAX, INT64_MIN};
  std::int64_t Problem::*const sizes[] = {
      &Problem::batch,      &Problem::seqlen_q,    &Problem::seqlen_k,    &Problem::total_q,
      &Problem::total_k,    &Problem::num_heads,   &Problem::head_dim,    &Problem::num_kv_heads,
      &Problem::head_dim_v, &Problem::window_left, &Problem::window_right};
  int num_valid = 0;
  for (const auto first : sizes)
    for (const auto second : sizes)
      for (const std::int64_t a : values)
        for (const std::int64_t b : values)
          for (const int flags : {0, 1}) {
            Problem p = default_problem();
            p.has_tree_mask = p.is_ragged = p.has_probs = flags;
            p.*first = a;
            p.*second = b;
            num_valid += check_problem(p).ok();
          }
  EXPECT_GT(num_valid, 0);
  Problem p = default_problem();
  p.dtype = 99;
  EXPECT_FALSE(check_problem(p).ok());
  p = default_problem();
  p.bias_dtype = HEADRACE_I32;
  EXPECT_FALSE(check_problem(p).ok());
}

}  // namespace
}  // namespace headrace
