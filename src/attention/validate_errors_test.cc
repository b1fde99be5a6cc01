// Every validation rule: the error names the argument, the value, the rule and the remedy, and
// nothing is written.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "attention/validate_fixture.h"
#include "tests/support/golden_texts.h"

namespace headrace {
namespace {

struct BadCase {
  const char* name;
  ErrorCode code;
  std::function<Call()> make;
  std::vector<const char*> substrings;  // argument, value, rule, remedy
};

using Mutation = std::function<void(Call&)>;
BadCase bad(const char* name, const Mutation& mutate, std::vector<const char*> substrings,
            ErrorCode code = ErrorCode::invalid_argument) {
  const auto make = [mutate] {
    Call call = Call::dense();
    mutate(call);
    return call;
  };
  return {name, code, make, std::move(substrings)};
}
BadCase bad_ragged(const char* name, const Mutation& mutate, std::vector<const char*> substrings) {
  const auto make = [mutate] {
    Call call = Call::ragged();
    mutate(call);
    return call;
  };
  return {name, ErrorCode::invalid_argument, make, std::move(substrings)};
}

constexpr double kInf = std::numeric_limits<double>::infinity();

std::vector<BadCase> bad_shapes() {
  return {
      bad("QMissing", [](Call& c) { c.t.q = {}; }, {"q: not given", "required", "pass q as"}),
      bad("OutMissing", [](Call& c) { c.t.out = {}; }, {"out: not given", "required", "pass out"}),
      bad("QRank3", [](Call& c) { c.t.q.rank = 3; },
          {"q.rank=3", "must be 4", "[batch, seqlen, heads, dim]", "cu_seqlens_q"}),
      bad("RankHuge", [](Call& c) { c.t.k.rank = 1 << 30; }, {"k.rank=1073741824", "must be 4"}),
      bad("RankNegative", [](Call& c) { c.t.v.rank = -1; }, {"v.rank=-1", "must be 4", "pass v"}),
      bad("NegativeSize", [](Call& c) { c.t.q.shape[1] = -3; },
          {"q.shape[1]=-3", "must not be negative", "pass q as"}),
      bad("KBatch", [](Call& c) { c.t.k.shape[0] = 3; },
          {"k.shape[0]=3", "must equal batch=2 of q", "pass k as [batch, seqlen_k, num_kv_heads"}),
      bad("KDim", [](Call& c) { c.t.k.shape[3] = 4; },
          {"k.shape[3]=4", "must equal head_dim=8 of q", "pass k as"}),
      bad("VSeqlen", [](Call& c) { c.t.v.shape[1] = 6; },
          {"v.shape[1]=6", "must equal seqlen_k=7 of k", "pass v as"}),
      bad("VHeads", [](Call& c) { c.t.v.shape[2] = 1; },
          {"v.shape[2]=1", "must equal num_kv_heads=2 of k", "pass v as"}),
      bad("OutDim", [](Call& c) { c.t.out.shape[3] = 5; },
          {"out.shape[3]=5", "must equal head_dim_v=6 of v", "pass out as"}),
      bad("OutHeads", [](Call& c) { c.t.out.shape[2] = 3; },
          {"out.shape[2]=3", "must equal num_heads=4 of q", "pass out as"}),
      bad("HeadsNotDivisible",
          [](Call& c) {
            c.t.k = c.fresh(DType::f32, {kBatch, kSeqlenK, 3, kDim});
            c.t.v = c.fresh(DType::f32, {kBatch, kSeqlenK, 3, kDimV});
          },
          {"num_heads=4", "num_kv_heads=3", "must be a multiple", "pass k and v"}),
      bad("KvHeadsZero",
          [](Call& c) {
            c.t.k = c.fresh(DType::f32, {kBatch, kSeqlenK, 0, kDim});
            c.t.v = c.fresh(DType::f32, {kBatch, kSeqlenK, 0, kDimV});
          },
          {"num_heads=4", "num_kv_heads=0", "must be a multiple"}),
      bad(
          "HeadDimZero", [](Call& c) { c.t.q.shape[3] = c.t.k.shape[3] = 0; },
          {"head_dim=0", "1 to 576", "split or project"}, ErrorCode::unsupported),
      bad(
          "HeadDimLarge",
          [](Call& c) {
            c.t.q = c.fresh(DType::f32, {1, 1, 1, 577});
            c.t.k = c.fresh(DType::f32, {1, 1, 1, 577});
            c.t.v = c.fresh(DType::f32, {1, 1, 1, 6});
            c.t.out = c.fresh(DType::f32, {1, 1, 1, 6});
          },
          {"head_dim=577", "1 to 576", "split or project"}, ErrorCode::unsupported),
      bad(
          "HeadDimVLarge",
          [](Call& c) {
            c.t.v = c.fresh(DType::f32, {kBatch, kSeqlenK, kKvHeads, 640});
            c.t.out = c.fresh(DType::f32, {kBatch, kSeqlenQ, kHeads, 640});
          },
          {"head_dim_v=640", "1 to 576"}, ErrorCode::unsupported),
  };
}

std::vector<BadCase> bad_memory() {
  return {
      bad("InnerStrideQ", [](Call& c) { c.t.q.strides[3] = 2; },
          {"q.strides[3]=2", "must be 1", "head_dim", "copy q"}),
      bad("InnerStrideOut", [](Call& c) { c.t.out.strides[3] = -1; },
          {"out.strides[3]=-1", "must be 1", "head_dim_v", "copy out"}),
      bad("NullData", [](Call& c) { c.t.v.data = nullptr; },
          {"v.data=NULL", "[2, 7, 2, 6]", "must point to", "pass the data"}),
      bad("Misaligned", [](Call& c) { c.t.k.data = static_cast<char*>(c.t.k.data) + 2; },
          {"k.data=0x", "multiple of the 4 bytes", "f32", "pass aligned data"}),
      bad("StrideOverflow", [](Call& c) { c.t.k.strides[0] = INT64_MAX / 2; },
          {"k.strides[0]=4611686018427387903", "k.shape[0]=2", "must fit 64 bits", "correct"}),
      bad("StrideMin", [](Call& c) { c.t.q.strides[2] = INT64_MIN; },
          {"q.strides[2]=-9223372036854775808", "must fit 64 bits"}),
      bad("ShapeOverflow", [](Call& c) { c.t.q.shape[0] = INT64_MAX; },
          {"q.strides[0]=160", "q.shape[0]=9223372036854775807", "must fit 64 bits"}),
      bad("BelowAddressZero", [](Call& c) { c.t.k.strides[1] = -(INT64_MAX / 64); },
          {"k:", "address space", "correct data, shape and strides"}),
      bad("StrideZeroSizesTooLarge",
          [](Call& c) {  // strides are 0, so the view itself fits
            for (auto* view : {&c.t.k, &c.t.v}) {
              view->shape[1] = INT64_MAX / 2;
              view->strides[1] = 0;
            }
          },
          {"seqlen_k=4611686018427387903", "0 to 2147483647", "correct the shape"}),
      bad("DtypeOfK", [](Call& c) { c.t.k.dtype = HEADRACE_F16; },
          {"k.dtype=f16", "must equal q.dtype=f32", "convert k"}),
      bad("DtypeOfOut", [](Call& c) { c.t.out.dtype = HEADRACE_BF16; },
          {"out.dtype=bf16", "must equal q.dtype=f32", "convert out"}),
      bad("DtypeUnknown", [](Call& c) { c.t.q.dtype = 77; },
          {"q.dtype=77", "must be a headrace_dtype", "set it"}),
      bad("DtypeInteger",
          [](Call& c) { c.t.q.dtype = c.t.k.dtype = c.t.v.dtype = c.t.out.dtype = HEADRACE_I32; },
          {"q.dtype=i32", "must be f32, f16, bf16 or f64", "convert q"}),
      bad("DeviceUnknown", [](Call& c) { c.t.q.device_type = 5; },
          {"q.device_type=5", "must be 0 (cpu) or 1 (cuda)", "set it"}),
      bad("DeviceMixed", [](Call& c) { c.t.v.device_type = HEADRACE_CUDA; },
          {"v is on cuda:0", "must be on cpu:0 like q", "copy it there"}),
      bad("DeviceIdMixed", [](Call& c) { c.t.out.device_id = 1; },
          {"out is on cpu:1", "must be on cpu:0", "copy it there"}),
      bad("OutIsQ",
          [](Call& c) {
            c.t.v = c.fresh(DType::f32, {kBatch, kSeqlenK, kKvHeads, kDim});
            c.t.out = c.t.q;
          },
          {"out overlaps q", "must share no memory", "memory of its own"}),
      bad("OutShiftedIntoK", [](Call& c) { c.t.out.data = static_cast<float*>(c.t.k.data) + 100; },
          {"out overlaps k", "must share no memory", "write out to"}),
      bad("OutBroadcast", [](Call& c) { c.t.out.strides[0] = 0; },
          {"out overlaps out", "itself", "write out to"}),
      bad("OutFoldsOntoItself", [](Call& c) { c.t.out.strides[1] = kDimV; },
          {"out overlaps out", "itself"}),
      bad("LseInOut",
          [](Call& c) {
            c.t.lse = TensorView(c.t.out.data, DType::f32, {kBatch, kHeads, kSeqlenQ});
          },
          {"lse overlaps out", "must share no memory", "write lse to"}),
      bad("ProbsInLse",
          [](Call& c) {
            c.t.probs = c.fresh(DType::f32, {kBatch, kHeads, kSeqlenQ, kSeqlenK});
            c.t.lse = TensorView(static_cast<float*>(c.t.probs.data) + 3, DType::f32,
                                 {kBatch, kHeads, kSeqlenQ});
          },
          {"probs overlaps lse", "must share no memory"}),
      bad("LseInMask",
          [](Call& c) {  // a different element size
            c.t.lse = c.fresh(DType::f32, {kBatch, kHeads, kSeqlenQ});
            c.t.mask = TensorView(static_cast<char*>(c.t.lse.data) + 5, DType::boolean,
                                  {1, 1, 1, kSeqlenK});
          },
          {"lse overlaps mask", "must share no memory"}),
  };
}

std::vector<BadCase> bad_options() {
  return {
      bad("SoftcapNegative", [](Call& c) { c.o.softcap = -1; },
          {"softcap=-1", "must be 0 (none) or a positive", "set it"}),
      bad("SoftcapNan", [](Call& c) { c.o.softcap = std::nan(""); }, {"softcap=nan", "must be 0"}),
      bad("SoftcapInf", [](Call& c) { c.o.softcap = kInf; }, {"softcap=inf", "must be 0"}),
      bad("SoftcapTiny", [](Call& c) { c.o.softcap = 1e-300; },
          {"softcap=1e-300", "positive normal number as f32"}),
      bad("ScaleInf", [](Call& c) { c.o.softmax_scale = -kInf; },
          {"softmax_scale=-inf", "must be finite as f32",
           "NaN for the default head_dim^-0.5=0.35"}),
      bad("ScaleHuge", [](Call& c) { c.o.softmax_scale = 1e300; },
          {"softmax_scale=1e+300", "must be finite as f32"}),
      bad("DropoutOne", [](Call& c) { c.o.dropout_p = 1; },
          {"dropout_p=1", "must be in [0, 1)", "0 for none"}),
      bad("DropoutNegative", [](Call& c) { c.o.dropout_p = -0.5; },
          {"dropout_p=-0.5", "must be in [0, 1)"}),
      bad("DropoutNan", [](Call& c) { c.o.dropout_p = std::nan(""); }, {"dropout_p=nan", "[0, 1)"}),
      bad("WindowLeft", [](Call& c) { c.o.window_left = -2; },
          {"window_left=-2", "must be -1 (open)", "pass -1"}),
      bad("WindowRight", [](Call& c) { c.o.window_right = INT64_MIN; },
          {"window_right=-9223372036854775808", "must be -1 (open)", "pass -1"}),
      bad("Causal", [](Call& c) { c.o.causal = 3; },
          {"causal=3", "must be 0 (none), 1 (bottom-right)", "headrace_causal"}),
      bad("NumSplits", [](Call& c) { c.o.num_splits = -4; },
          {"num_splits=-4", "must not be negative", "pass 0"}),
  };
}

std::vector<BadCase> bad_features() {
  return {
      bad("LseDtype",
          [](Call& c) {
            c.t.lse = c.fresh(DType::f64, {kBatch, kHeads, kSeqlenQ});
          },
          {"lse.dtype=f64", "must be f32", "convert lse"}),
      bad("LseShape",
          [](Call& c) {
            c.t.lse = c.fresh(DType::f32, {kBatch, kSeqlenQ, kHeads});
          },
          {"lse.shape[1]=5", "must equal num_heads=4 of q", "[batch, num_heads, seqlen_q]"}),
      bad("LseRank", [](Call& c) { c.t.lse = c.fresh(DType::f32, {kHeads}); },
          {"lse.rank=1", "must be 3", "[batch, num_heads, seqlen_q]"}),
      bad("BiasDtype",
          [](Call& c) {
            c.t.bias = c.fresh(DType::f16, {1, 1, 1, kSeqlenK});
          },
          {"bias.dtype=f16", "must be f32", "convert bias"}),
      bad("BiasShape",
          [](Call& c) {
            c.t.bias = c.fresh(DType::f32, {1, 3, 1, kSeqlenK});
          },
          {"bias.shape[1]=3", "must equal num_heads=4 of q or 1", "pass bias as"}),
      bad("BiasKeys",
          [](Call& c) {
            c.t.bias = c.fresh(DType::f32, {1, 1, 1, 8});
          },
          {"bias.shape[3]=8", "must equal seqlen_k=7 of k or 1"}),
      bad("MaskDtype",
          [](Call& c) {
            c.t.mask = c.fresh(DType::u32, {1, 1, 1, kSeqlenK});
          },
          {"mask.dtype=u32", "must be bool", "true = keep", "convert mask"}),
      bad("MaskRank",
          [](Call& c) {
            c.t.mask = c.fresh(DType::boolean, {kSeqlenQ, kSeqlenK});
          },
          {"mask.rank=2", "must be 4", "pass mask as"}),
      bad("TreeMaskWords",
          [](Call& c) {
            c.t.tree_mask = c.fresh(DType::u32, {kBatch, kSeqlenQ, 0});
          },
          {"tree_mask.shape[2]=0", "ceil(seqlen_q / 32)=1", "pass one bit per query"}),
      bad("TreeMaskStride",
          [](Call& c) {
            c.t.tree_mask = c.fresh(DType::u32, {kBatch, kSeqlenQ, 4});
            c.t.tree_mask.shape[2] = 2;
            c.t.tree_mask.strides[2] = 2;
          },
          {"tree_mask.strides[2]=2", "must be 1", "copy tree_mask"}),
      bad("TreeMaskDtype",
          [](Call& c) {
            c.t.tree_mask = c.fresh(DType::i32, {kBatch, kSeqlenQ, 1});
          },
          {"tree_mask.dtype=i32", "must be u32", "convert tree_mask"}),
      bad("TreeMaskQueriesBeyondKeys",
          [](Call& c) {
            c.t.q = c.fresh(DType::f32, {kBatch, 9, kHeads, kDim});
            c.t.out = c.fresh(DType::f32, {kBatch, 9, kHeads, kDimV});
            c.t.tree_mask = c.fresh(DType::u32, {kBatch, 9, 1});
          },
          {"tree_mask", "seqlen_q=9", "seqlen_k=7", "at most seqlen_k", "append their keys"}),
      bad("AlibiShape", [](Call& c) { c.t.alibi_slopes = c.fresh(DType::f32, {kKvHeads}); },
          {"alibi_slopes.shape[0]=2", "must equal num_heads=4", "pass alibi_slopes as"}),
      bad("AlibiBatch",
          [](Call& c) {
            c.t.alibi_slopes = c.fresh(DType::f32, {3, kHeads});
          },
          {"alibi_slopes.shape[0]=3", "must equal batch=2", "[batch, num_heads]"}),
      bad("AlibiRank",
          [](Call& c) {
            c.t.alibi_slopes = c.fresh(DType::f32, {1, 1, kHeads});
          },
          {"alibi_slopes.rank=3", "must be 1 or 2", "f32 [num_heads] or [batch, num_heads]"}),
      bad("AlibiDtype", [](Call& c) { c.t.alibi_slopes = c.fresh(DType::f64, {kHeads}); },
          {"alibi_slopes.dtype=f64", "must be f32", "convert alibi_slopes"}),
      bad("SinksShape", [](Call& c) { c.t.sinks = c.fresh(DType::f32, {5}); },
          {"sinks.shape[0]=5", "must equal num_heads=4", "pass sinks as [num_heads]"}),
      bad("SinksDtype", [](Call& c) { c.t.sinks = c.fresh(DType::bf16, {kHeads}); },
          {"sinks.dtype=bf16", "must be f32", "convert sinks"}),
      bad("ProbsShape",
          [](Call& c) {
            c.t.probs = c.fresh(DType::f32, {kBatch, kHeads, kSeqlenQ, 8});
          },
          {"probs.shape[3]=8", "must equal seqlen_k=7 of k", "pass probs as"}),
      bad("ProbsTooLarge",
          [](Call& c) {
            const std::int64_t n = 1 << 15;
            c.t.q = TensorView(c.t.q.data, DType::f32, {1, n, 1, 1});
            c.t.k = TensorView(c.t.k.data, DType::f32, {1, n, 1, 1});
            c.t.v = TensorView(c.t.v.data, DType::f32, {1, n, 1, 1});
            c.t.out = TensorView(c.t.out.data, DType::f32, {1, n, 1, 1});
            c.t.probs = TensorView(c.t.q.data, DType::f32, {1, 1, n, n});
          },
          {"probs of shape [1, 1, 32768, 32768]", "at most 268435456 elements", "without probs"}),
  };
}

std::vector<BadCase> bad_ragged_cases() {
  return {
      bad_ragged("OneCuSeqlens", [](Call& c) { c.t.cu_seqlens_k = {}; },
                 {"cu_seqlens_k: not given", "needs cu_seqlens_q and cu_seqlens_k", "pass both"}),
      bad_ragged("CuSeqlensDtype", [](Call& c) { c.t.cu_seqlens_q.dtype = HEADRACE_U32; },
                 {"cu_seqlens_q.dtype=u32", "must be i32", "convert cu_seqlens_q"}),
      bad_ragged("CuSeqlensRank", [](Call& c) { c.t.cu_seqlens_q.rank = 2; },
                 {"cu_seqlens_q.rank=2", "must be 1", "i32 [batch + 1]"}),
      bad_ragged("CuSeqlensEmpty", [](Call& c) { c.t.cu_seqlens_q.shape[0] = 0; },
                 {"cu_seqlens_q.shape[0]=0", "must be batch + 1", "or [0] for an empty batch"}),
      bad_ragged("CuSeqlensHuge",
                 [](Call& c) {
                   c.t.cu_seqlens_q.shape[0] = std::int64_t{1} << 33;
                   c.t.cu_seqlens_q.strides[0] = 0;
                 },
                 {"cu_seqlens_q.shape[0]=8589934592", "batch + 1, at most 2147483648",
                  "pass one prefix sum per sequence"}),
      bad_ragged("CuSeqlensStride", [](Call& c) { c.t.cu_seqlens_k.strides[0] = 2; },
                 {"cu_seqlens_k.strides[0]=2", "must be 1", "copy cu_seqlens_k"}),
      bad_ragged("CuSeqlensShapes", [](Call& c) { c.t.cu_seqlens_k.shape[0] = 3; },
                 {"cu_seqlens_k.shape[0]=3", "must equal batch + 1=4 of cu_seqlens_q", "pass"}),
      bad_ragged("DenseRank",
                 [](Call& c) {
                   c.t.q = c.fresh(DType::f32, {1, 10, kHeads, kDim});
                 },
                 {"q.rank=4", "must be 3", "[total, heads, dim]"}),
      bad_ragged("VRows", [](Call& c) { c.t.v.shape[0] = 11; },
                 {"v.shape[0]=11", "must equal total_k=12 of k", "[total_k, num_kv_heads"}),
      bad_ragged("MaxSeqlenMissing", [](Call& c) { c.o.max_seqlen_k = 0; },
                 {"max_seqlen_k=0", "upper bound", "set it in the options"}),
      bad_ragged("MaxSeqlenNegative", [](Call& c) { c.o.max_seqlen_q = -1; },
                 {"max_seqlen_q=-1", "upper bound", "set it in the options"}),
      bad_ragged("MaxSeqlenHuge", [](Call& c) { c.o.max_seqlen_q = INT64_MAX; },
                 {"max_seqlen_q=9223372036854775807", "at most 2147483647", "set it"}),
      bad_ragged("NoSequences",
                 [](Call& c) { c.t.cu_seqlens_q.shape[0] = c.t.cu_seqlens_k.shape[0] = 1; },
                 {"cu_seqlens_q", "0 sequences", "q.shape[0]=10", "pass [batch + 1]"}),
      bad_ragged("BiasKeys",
                 [](Call& c) {
                   c.t.bias = c.fresh(DType::f32, {1, 10, 12});
                 },
                 {"bias.shape[2]=12", "must equal max_seqlen_k=7 of options or 1"}),
      bad_ragged("LseShape",
                 [](Call& c) {
                   c.t.lse = c.fresh(DType::f32, {10, kHeads});
                 },
                 {"lse.shape[0]=10", "must equal num_heads=4", "[num_heads, total_q]"}),
      bad_ragged("Probs",
                 [](Call& c) {
                   c.t.probs = c.fresh(DType::f32, {1, kHeads, 7, 7});
                 },
                 {"probs given for a ragged batch", "only dense", "call without probs"}),
      bad_ragged("FirstNotZero",
                 [](Call& c) {
                   c.set_lengths(c.t.cu_seqlens_q, {1, 3, 3, 10});
                 },
                 {"cu_seqlens_q[0]=1", "must be 0", "start at the first row"}),
      bad_ragged("Decreases",
                 [](Call& c) {
                   c.set_lengths(c.t.cu_seqlens_k, {0, 5, 4, 12});
                 },
                 {"cu_seqlens_k[2]=4 after cu_seqlens_k[1]=5", "must not decrease", "prefix sums"}),
      bad_ragged("ExtremeValues",
                 [](Call& c) {
                   c.set_lengths(c.t.cu_seqlens_k, {0, INT32_MAX, INT32_MIN, 12});
                 },
                 {"cu_seqlens_k[1]=2147483647", "length 2147483647", "at most max_seqlen_k=7"}),
      bad_ragged("LongerThanMax",
                 [](Call& c) {
                   c.set_lengths(c.t.cu_seqlens_q, {0, 1, 2, 10});
                 },
                 {"cu_seqlens_q[3]=10 after cu_seqlens_q[2]=2", "length 8",
                  "at most max_seqlen_q=7", "set that option"}),
      bad_ragged("LastNotTotal",
                 [](Call& c) {
                   c.set_lengths(c.t.cu_seqlens_q, {0, 3, 3, 9});
                 },
                 {"cu_seqlens_q[3]=9", "must be the 10 rows of q", "pass prefix sums"}),
      bad_ragged("TreeMaskSequence",
                 [](Call& c) {
                   c.t.tree_mask = c.fresh(DType::u32, {10, 1});
                   c.set_lengths(c.t.cu_seqlens_q, {0, 3, 6, 10});
                 },
                 {"tree_mask with sequence 1", "seqlen_q=3", "seqlen_k=0", "append their keys"}),
  };
}

void expect_failure(const BadCase& test, testing::GoldenTexts& texts) {
  SCOPED_TRACE(test.name);
  Call call = test.make();
  const auto before = call.memory;
  const Status status = call.check();
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->code, test.code) << status->message;
  texts.add(static_cast<int>(status->code), status->message);
  for (const char* substring : test.substrings)
    EXPECT_NE(status->message.find(substring), std::string::npos)
        << "no \"" << substring << "\" in: " << status->message;
  EXPECT_EQ(std::memcmp(before.data(), call.memory.data(), before.size() * sizeof(double)), 0)
      << "something was written";
}

// The values that an error lists are exactly the accepted ones, each listed once.
TEST(Validate, ErrorsListEverySupportedDtypeAndRank) {
  headrace_tensor headrace_attention_tensors::*const tensors[] = {
      &headrace_attention_tensors::lse,   &headrace_attention_tensors::alibi_slopes,
      &headrace_attention_tensors::bias,  &headrace_attention_tensors::mask,
      &headrace_attention_tensors::sinks, &headrace_attention_tensors::tree_mask,
      &headrace_attention_tensors::probs};
  constexpr DType kOperands[] = {DType::f32, DType::f16, DType::bf16, DType::f64};
  constexpr DType kAll[] = {DType::f32, DType::f16, DType::bf16,   DType::f64,
                            DType::i32, DType::u32, DType::boolean};
  const auto rule_of = [](const std::string& message) {
    const auto begin = message.find(": must be ");
    if (begin == std::string::npos) return std::string();
    std::string rule = message.substr(begin, message.find(';') - begin);
    for (auto open = rule.find(" ("); open != std::string::npos; open = rule.find(" ("))
      rule.erase(open, rule.find(')') + 1 - open);  // relation to another tensor
    return rule;
  };
  for (const DType operand : kOperands)
    for (const auto tensor : tensors) {
      std::string dtypes, ranks, dtype_rule, rank_rule;
      for (int rank = 1; rank <= 6; ++rank)
        for (const DType dtype : kAll) {
          Call c = Call::dense(operand);
          c.t.*tensor = c.fresh(dtype, {1, 1, 1, 1, 1, 1});
          (c.t.*tensor).rank = rank;
          const Status bad = c.check();
          const std::string message = bad ? bad->message : "";
          if (message.find(".rank=") != std::string::npos) {
            rank_rule = rule_of(message);
            continue;
          }
          if (ranks.find(std::to_string(rank)) == std::string::npos) ranks += std::to_string(rank);
          if (message.find(".dtype=") != std::string::npos)
            dtype_rule = rule_of(message);
          else if (dtypes.find(dtype_name(dtype)) == std::string::npos)
            dtypes += std::string(dtype_name(dtype)) + ' ';
        }
      for (const char rank : ranks)
        EXPECT_NE(rank_rule.find(rank), std::string::npos) << ranks << rank_rule;
      for (const DType dtype : kAll) {
        const std::string name = dtype_name(dtype);
        const auto first = dtype_rule.find(name);
        const bool is_taken = dtypes.find(name + ' ') != std::string::npos;
        EXPECT_EQ(first != std::string::npos, is_taken) << dtypes << dtype_rule;
        EXPECT_EQ(first, dtype_rule.rfind(name)) << dtype_rule;
      }
    }
}

TEST(Validate, RefusesBadShapes) {
  testing::GoldenTexts texts("attention.txt");
  for (const auto& test : bad_shapes()) expect_failure(test, texts);
}
TEST(Validate, RefusesBadMemory) {
  testing::GoldenTexts texts("attention.txt");
  for (const auto& test : bad_memory()) expect_failure(test, texts);
}
TEST(Validate, RefusesBadOptions) {
  testing::GoldenTexts texts("attention.txt");
  for (const auto& test : bad_options()) expect_failure(test, texts);
}
TEST(Validate, RefusesBadFeatures) {
  testing::GoldenTexts texts("attention.txt");
  for (const auto& test : bad_features()) expect_failure(test, texts);
}
TEST(Validate, RefusesBadRaggedBatches) {
  testing::GoldenTexts texts("attention.txt");
  for (const auto& test : bad_ragged_cases()) expect_failure(test, texts);
}

}  // namespace
}  // namespace headrace
