// SparQ attention over quantised keys and values on every instruction set of this machine, against
// attention over the chosen keys in double; its bits, its append, what it refuses.
#include <gtest/gtest.h>

#include <map>

#include "backends/cpu/sparq/sparq.h"
#include "tests/support/instruction_sets.h"
#include "tests/support/run_sparq.h"
#include "tests/support/sparq_codes_call.h"

namespace headrace {
namespace {

using testing::QuantisedCase;
using testing::Random;
using testing::SparqCodesCall;
using testing::SparqCodesCase;

const std::vector<const cpu::SparqOps*> kRunnable = testing::runnable(cpu::all_sparq_ops());

void run_with(SparqCodesCall& call, const cpu::SparqOps& ops, int num_threads) {
  testing::run_sparq(call.tensors(call.keys.tensors()), call.options(), ops, num_threads);
}

TEST(SparqCodes, IsAttentionOverTheChosenKeysOnEveryInstructionSet) {
  for (const cpu::SparqOps* ops : kRunnable) {
    SCOPED_TRACE(ops->name);
    Random random(3);
    std::map<DType, int> num_k, num_v;
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
      for (int i = 0; i < 40; ++i) {
        const SparqCodesCase c = testing::random_sparq_codes_case(random, dtype);
        ++num_k[c.of_keys.k_dtype], ++num_v[c.of_keys.v_dtype];
        SparqCodesCall call(c);
        run_with(call, *ops, i % 2 == 0 ? 1 : 8);
        call.expect_attention_over_keys();
        if (HasFailure()) return;
      }
    EXPECT_GE(num_k.size(), 7u);  // codes, and the dtypes of q
    EXPECT_GE(num_v.size(), 7u);
  }
}

// Whole groups of positions with every length in between: the newest keys change their form.
TEST(SparqCodes, KeysOfTheQuerysGroupAreUnquantised) {
  for (std::int32_t length = 1; length <= 40; ++length) {
    SparqCodesCase c;
    c.of_keys.k_dtype = DType::i4x2;
    c.of_keys.v_dtype = DType::u2x4;
    c.of_keys.keys = {length};
    c.num_keys = 12;
    SparqCodesCall call(c);
    const Status bad =
        sparq_attention(call.tensors(call.keys.tensors()), call.options(), {}, nullptr);
    ASSERT_FALSE(bad) << bad->message;
    call.expect_attention_over_keys();
    if (HasFailure()) return;
  }
}

TEST(SparqCodes, BitsDependNeitherOnThreadsNorOnTheBatch) {
  SparqCodesCase c;
  c.of_keys.dtype = DType::bf16;
  c.of_keys.keys = {1100, 700, 513};
  c.of_keys.queries = {1, 1, 1};
  c.num_keys = 40;
  for (const cpu::SparqOps* ops : kRunnable) {
    SparqCodesCall one(c), many(c);
    run_with(one, *ops, 1);
    run_with(many, *ops, 32);
    EXPECT_EQ(one.keys.out(), many.keys.out()) << ops->name;
    for (std::int64_t b = 0; b < 3; ++b) {
      SparqCodesCall alone(c);
      headrace_sparq_tensors t = alone.tensors(alone.keys.tensors());
      headrace_quantised_kv codes = *t.quantised;
      t.quantised = &codes;
      for (headrace_tensor* x : {&t.q, &t.out, &t.v_sum, &t.block_table, &t.seqused_k, &t.indices,
                                 &t.alpha, &codes.recent_table})
        *x = *TensorView(*x).slice(0, b, b + 1);
      const Status bad = sparq_attention(t, alone.options(), {}, nullptr);
      ASSERT_FALSE(bad) << bad->message;
      if (ops != kRunnable[0]) continue;  // the one that the library selects
      for (std::int64_t head = 0; head < c.of_keys.num_heads; ++head)
        EXPECT_EQ(alone.keys.result(b, 0, head, 3), one.keys.result(b, 0, head, 3));
    }
  }
}

// New keys are one page, from the last token to the first.
TEST(SparqCodes, TheAppendCopiesKeysFromSlotsOfTheirOwnAndSumsCodes) {
  Random random(9);
  for (int i = 0; i < 60; ++i) {
    SparqCodesCase c = testing::random_sparq_codes_case(random, i % 2 ? DType::f32 : DType::bf16);
    c.of_keys.has_per_sequence_scales = false;
    const QuantisedCase& x = c.of_keys;
    SparqCodesCall call(c);
    const std::vector<unsigned char> components = call.components;
    const std::vector<float> v_sum = call.v_sum;
    std::ranges::fill(call.components, static_cast<unsigned char>(0xff));
    std::ranges::fill(call.v_sum, 0.0f);
    const headrace_attention_tensors dense = call.keys.tensors();
    const headrace_sparq_tensors cache = call.tensors(dense);
    std::vector<std::int64_t> slots, k_slots;
    std::vector<std::int32_t> offsets{0};
    const auto* table = static_cast<const std::int32_t*>(dense.block_table.data);
    std::int64_t num_tokens = 0;
    for (const std::int32_t length : x.keys) num_tokens += length;
    std::vector<unsigned char> k(
        static_cast<std::size_t>(num_tokens * x.num_kv_heads * x.head_dim) * dtype_bytes(x.dtype));
    for (std::size_t b = 0; b < x.keys.size(); ++b) {
      const auto row = static_cast<std::int64_t>(b);
      for (std::int64_t j = 0; j < x.keys[b]; ++j) {
        slots.push_back(table[row * dense.block_table.shape[1] + j / x.page_size] * x.page_size +
                        j % x.page_size);
        k_slots.push_back(num_tokens - 1 - static_cast<std::int64_t>(k_slots.size()));
        for (std::int64_t head = 0; head < x.num_kv_heads; ++head)
          for (std::int64_t d = 0; d < x.head_dim; ++d)
            store_from_double(x.dtype, k.data(),
                              (k_slots.back() * x.num_kv_heads + head) * x.head_dim + d,
                              call.unquantised(true, row, head, j, d));
      }
      offsets.push_back(static_cast<std::int32_t>(slots.size()));
    }
    headrace_sparq_append_tensors t{};
    t.struct_size = sizeof t;
    t.k = TensorView(k.data(), x.dtype, {1, num_tokens, x.num_kv_heads, x.head_dim});
    t.slot_mapping = TensorView(slots.data(), DType::i64, {num_tokens});
    t.k_slots = TensorView(k_slots.data(), DType::i64, {num_tokens});
    t.k_components = cache.k_components;
    t.v = dense.v;
    t.v_scale = dense.quantised->v_scale;
    t.v_sum = TensorView(call.v_sum.data(), DType::f32,
                         {static_cast<std::int64_t>(x.keys.size()), x.num_kv_heads, x.head_dim_v});
    t.cu_seqlens =
        TensorView(offsets.data(), DType::i32, {static_cast<std::int64_t>(offsets.size())});
    const Status bad = sparq_append(t, nullptr);
    ASSERT_FALSE(bad) << bad->message << ' ' << text_of(x);
    EXPECT_EQ(call.components, components) << text_of(x);
    for (std::size_t e = 0; e < v_sum.size(); ++e)
      ASSERT_NEAR(call.v_sum[e], v_sum[e], 1e-3) << text_of(x);
  }
}

TEST(SparqCodes, RefusesWhatDenseAttentionRefuses) {
  SparqCodesCase c;
  SparqCodesCall call(c);
  const auto refusal = [&](auto change) {
    headrace_sparq_tensors t = call.tensors(call.keys.tensors());
    headrace_quantised_kv codes = *t.quantised;
    t.quantised = &codes;
    change(t, codes);
    const Status bad = sparq_attention(t, call.options(), {}, nullptr);
    return bad ? bad->message : std::string("none");
  };
  EXPECT_EQ(refusal([](auto&, auto&) {}), "none");
  EXPECT_EQ(refusal([](auto&, auto& codes) { codes.k_scale = {}; }),
            "k_scale: not given, but k has codes of dtype i8; pass f32 scales in the shape of k "
            "without its last axis, or [batch, num_kv_heads]");
  EXPECT_EQ(refusal([](auto& t, auto&) { t.quantised = nullptr; }).find("k_scale: not given"), 0u);
  EXPECT_EQ(refusal([](auto&, auto& codes) { codes.v_recent = {}; }).find("v_recent: not given"),
            0u);
  EXPECT_EQ(
      refusal([](auto& t, auto&) { t.k.dtype = HEADRACE_BOOL; }).find("k.dtype=bool: must be"), 0u);
  EXPECT_EQ(refusal([](auto& t, auto& codes) {
              t.alpha.data = codes.k_scale.data;
            }).find("alpha overlaps k_scale: an output must share no memory"),
            0u);
  std::vector<std::int32_t> far = {99};
  EXPECT_EQ(refusal([&](auto&, auto& codes) {
              codes.recent_table = TensorView(far.data(), DType::i32, {1, 1});
            }).find("recent_table"),
            0u);
}

TEST(SparqCodes, TheAppendRefusesScalesThatDoNotFit) {
  SparqCodesCase c;
  SparqCodesCall call(c);
  const headrace_attention_tensors dense = call.keys.tensors();
  std::vector<std::int64_t> slots = {0};
  headrace_sparq_append_tensors t{};
  t.struct_size = sizeof t;
  t.k = TensorView(call.components.data(), DType::f32, {1, 1, 2, 16});
  std::vector<unsigned char> keys(call.components.size());
  t.k.data = keys.data();
  t.slot_mapping = t.k_slots = TensorView(slots.data(), DType::i64, {1});
  t.k_components = call.tensors(dense).k_components;
  t.v = dense.v;
  t.v_sum = TensorView(call.v_sum.data(), DType::f32, {1, 2, 16});
  const auto message = [&] {
    const Status bad = sparq_append(t, nullptr);
    return bad ? bad->message : std::string("none");
  };
  EXPECT_EQ(message().find("v_scale: not given, but v has codes of dtype i8"), 0u) << message();
  t.v_scale = dense.quantised->v_scale;
  EXPECT_EQ(message(), "none");
  slots[0] = t.k.shape[0] * t.k.shape[1];
  EXPECT_EQ(message().find("slot_mapping[0]=1"), std::string::npos) << message();
  EXPECT_EQ(message().find("k_slots[0]=1: must be below 1, the slots of k"), 0u) << message();
  slots[0] = 0;
  --t.v_scale.shape[0];
  EXPECT_EQ(message().find("v_scale.shape[0]="), 0u) << message();
}

}  // namespace
}  // namespace headrace
