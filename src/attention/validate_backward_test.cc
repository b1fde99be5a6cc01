// Every rule of the backward's validation, and its relation to the forward's checks.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "attention/validate_fixture.h"
#include "tests/support/golden_texts.h"

namespace headrace {
namespace {

struct BackwardCall : Call {
  headrace_attention_gradients g{};

  explicit BackwardCall(Call call) : Call(std::move(call)) {
    const bool is_ragged = t.cu_seqlens_q.rank != 0;
    t.lse =
        is_ragged ? fresh(DType::f32, {kHeads, 10}) : fresh(DType::f32, {kBatch, kHeads, kSeqlenQ});
    t.bias = is_ragged ? fresh(DType::f32, {kHeads, 10, 7})
                       : fresh(DType::f32, {1, kHeads, kSeqlenQ, kSeqlenK});
    t.sinks = fresh(DType::f32, {kHeads});
    g = gradients();
  }

  Result<Problem> validated() const { return validate_backward(t, g, o); }
};

TEST(ValidateBackward, FillsTheProblem) {
  for (Call call : {Call::dense(), Call::ragged()}) {
    const BackwardCall c(std::move(call));
    Result<Problem> p = c.validated();
    ASSERT_TRUE(p.ok()) << p.failure().message;
    EXPECT_EQ(p.value().phase, HEADRACE_BACKWARD);
    EXPECT_TRUE(p.value().has_lse && p.value().has_dlse && p.value().has_dbias &&
                p.value().has_dsinks);
    const AttentionArgs args = make_backward_args(p.value(), c.t, c.g, c.o);
    EXPECT_EQ(args.gradients.dq.data, c.g.dq.data);
    EXPECT_EQ(args.gradients.dlse.data, c.g.dlse.data);
    EXPECT_EQ(args.gradients.dsinks, c.g.dsinks.data);
    EXPECT_EQ(args.gradients.dbias.stride_head, c.g.dbias.strides[p.value().is_ragged ? 0 : 1]);
  }
}

TEST(ValidateBackward, OptionalGradientsMayBeAbsent) {
  BackwardCall c(Call::dense());
  c.g.dlse = c.g.dbias = c.g.dsinks = headrace_tensor{};
  Result<Problem> p = c.validated();
  ASSERT_TRUE(p.ok()) << p.failure().message;
  EXPECT_FALSE(p.value().has_dlse || p.value().has_dbias || p.value().has_dsinks);
}

TEST(ValidateBackward, GradientsCountForTheAlignment) {
  BackwardCall c(Call::dense());
  EXPECT_EQ(c.validated().value().alignment, 8);  // rows of v are 24 bytes
  c.g.dv.data = static_cast<float*>(c.g.dv.data) + 1;
  EXPECT_EQ(c.validated().value().alignment, 4);
}

struct BadCase {
  const char* name;
  std::function<void(BackwardCall&)> spoil;
  std::vector<const char*> substrings;  // argument, value, rule, remedy
};

const BadCase kBadCases[] = {
    {"LseMissing",
     [](auto& c) { c.t.lse = {}; },
     {"lse: not given", "the lse that the forward wrote", "pass it as [batch, num_heads"}},
    {"Probs",
     [](auto& c) {
       c.t.probs = c.fresh(DType::f32, {kBatch, kHeads, kSeqlenQ, kSeqlenK});
     },
     {"probs: given to the backward", "leave probs zeroed"}},
    {"DoutMissing",
     [](auto& c) { c.g.dout = {}; },
     {"dout: not given", "dout, dq, dk and dv are required", "pass dout as"}},
    {"DqMissing", [](auto& c) { c.g.dq = {}; }, {"dq: not given", "required", "pass dq as"}},
    {"DkMissing", [](auto& c) { c.g.dk = {}; }, {"dk: not given", "required", "pass dk as"}},
    {"DvMissing", [](auto& c) { c.g.dv = {}; }, {"dv: not given", "required", "pass dv as"}},
    {"DoutRank", [](auto& c) { c.g.dout.rank = 3; }, {"dout.rank=3", "must be 4", "pass dout as"}},
    {"DoutShape",
     [](auto& c) { c.g.dout.shape[3] = 5; },
     {"dout.shape[3]=5", "must equal head_dim_v=6 of v", "pass dout as"}},
    {"DqShape",
     [](auto& c) { c.g.dq.shape[1] = 4; },
     {"dq.shape[1]=4", "must equal seqlen_q=5 of q", "pass dq as"}},
    {"DkHeads",
     [](auto& c) { c.g.dk.shape[2] = kHeads; },
     {"dk.shape[2]=4", "must equal num_kv_heads=2 of k", "pass dk as"}},
    {"DvShape",
     [](auto& c) { c.g.dv.shape[3] = 8; },
     {"dv.shape[3]=8", "must equal head_dim_v=6 of v", "pass dv as"}},
    {"DqDtype",
     [](auto& c) { c.g.dq.dtype = HEADRACE_F64; },
     {"dq.dtype=f64", "must equal q.dtype=f32", "convert dq"}},
    {"DoutGap",
     [](auto& c) { c.g.dout.strides[3] = 2; },
     {"dout.strides[3]=2", "must be 1", "copy dout"}},
    {"DoutNull",
     [](auto& c) { c.g.dout.data = nullptr; },
     {"dout.data=NULL", "must point to", "pass the data"}},
    {"DlseShape",
     [](auto& c) { c.g.dlse.shape[2] = 4; },
     {"dlse.shape[2]=4", "must equal seqlen_q=5 of q", "pass dlse as"}},
    {"DlseDtype",
     [](auto& c) { c.g.dlse.dtype = HEADRACE_F16; },
     {"dlse.dtype=f16", "must be f32", "convert dlse"}},
    {"DbiasAlone",
     [](auto& c) { c.t.bias = {}; },
     {"dbias: given without bias", "gradient of bias", "pass the bias"}},
    {"DbiasShape",
     [](auto& c) { c.g.dbias.shape[1] = 1; },
     {"dbias.shape[1]=1", "must equal num_heads=4 of bias", "pass dbias as"}},
    {"DbiasRank", [](auto& c) { c.g.dbias.rank = 3; }, {"dbias.rank=3", "must be 4"}},
    {"DbiasDtype",
     [](auto& c) { c.g.dbias.dtype = HEADRACE_F16; },
     {"dbias.dtype=f16", "must be f32 (the dtype of bias)", "convert dbias"}},
    {"DsinksAlone",
     [](auto& c) { c.t.sinks = {}; },
     {"dsinks: given without sinks", "gradient of sinks", "pass the sinks"}},
    {"DsinksShape",
     [](auto& c) { c.g.dsinks.shape[0] = 2; },
     {"dsinks.shape[0]=2", "must equal num_heads=4 of q", "pass dsinks as"}},
    {"DsinksDtype",
     [](auto& c) { c.g.dsinks.dtype = HEADRACE_BF16; },
     {"dsinks.dtype=bf16", "must be f32", "convert dsinks"}},
    {"DvDevice",
     [](auto& c) { c.g.dv.device_type = HEADRACE_CUDA; },
     {"dv is on cuda:0", "must be on cpu:0 like q", "copy it there"}},
    {"DqOnQ",
     [](auto& c) { c.g.dq = c.t.q; },
     {"dq overlaps q", "must share no memory", "write dq to memory of its own"}},
    {"DvOnDout",
     [](auto& c) { c.g.dv.data = c.g.dout.data; },
     {"dv overlaps dout", "must share no memory"}},
    {"DkOnDq",
     [](auto& c) { c.g.dk.data = c.g.dq.data; },
     {"dk overlaps dq", "another output", "memory of its own"}},
    {"DqOnOut",
     [](auto& c) { c.g.dq.data = c.t.out.data; },
     {"dq overlaps out", "memory of its own"}},
    {"DbiasOnBias", [](auto& c) { c.g.dbias = c.t.bias; }, {"dbias overlaps bias"}},
    {"DsinksOnLse", [](auto& c) { c.g.dsinks.data = c.t.lse.data; }, {"dsinks overlaps lse"}},
    {"DkExpanded",
     [](auto& c) { c.g.dk.strides[1] = 0; },
     {"dk overlaps dk", "two indices map to one element"}},
};

TEST(ValidateBackward, RejectsInvalidCalls) {
  testing::GoldenTexts texts("attention.txt");
  for (const BadCase& test : kBadCases) {
    SCOPED_TRACE(test.name);
    BackwardCall call(Call::dense());
    test.spoil(call);
    Result<Problem> problem = call.validated();
    ASSERT_FALSE(problem.ok());
    EXPECT_EQ(problem.failure().code, ErrorCode::invalid_argument);
    texts.add(problem.failure().message);
    for (const char* substring : test.substrings)
      EXPECT_NE(problem.failure().message.find(substring), std::string::npos)
          << "no \"" << substring << "\" in: " << problem.failure().message;
  }
}

// Problems that a caller fills by hand.
TEST(ValidateBackward, RejectsInconsistentProblems) {
  const auto message_of = [](const std::function<void(Problem&)>& spoil) {
    Problem p = default_problem();
    spoil(p);
    Result<Problem> checked = check_problem(p);
    return checked.ok() ? std::string() : checked.failure().message;
  };
  const auto backward = [](Problem& p) {
    p.phase = HEADRACE_BACKWARD;
    p.has_lse = 1;
  };
  EXPECT_EQ(message_of(backward), "");
  EXPECT_NE(message_of([](Problem& p) { p.phase = 2; }).find("problem.phase=2: must be 0"),
            std::string::npos);
  EXPECT_NE(message_of([](Problem& p) { p.phase = 1; }).find("problem.has_lse=0"),
            std::string::npos);
  EXPECT_NE(
      message_of([](Problem& p) { p.has_dlse = 1; }).find("problem.has_dlse=1: needs phase 1"),
      std::string::npos);
  EXPECT_NE(message_of([&](Problem& p) {
              backward(p);
              p.has_dbias = 1;
            }).find("problem.has_dbias=1: needs phase 1 and a bias"),
            std::string::npos);
  EXPECT_NE(message_of([&](Problem& p) {
              backward(p);
              p.has_dsinks = 1;
            }).find("problem.has_dsinks=1: needs phase 1 and sinks"),
            std::string::npos);
  EXPECT_NE(message_of([&](Problem& p) {
              backward(p);
              p.has_probs = 1;
            }).find("problem.has_probs=1: needs phase 0"),
            std::string::npos);
}

}  // namespace
}  // namespace headrace
