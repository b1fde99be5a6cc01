// SparQ attention of every instruction set of this machine, over dtypes, groups, shapes and kinds
// of memory, against SparQ in double; what it reads; bits; edge cases; its append.
#include "ops/sparq.h"

#include <gtest/gtest.h>

#include <numeric>

#include "backends/cpu/sparq/select.h"
#include "backends/cpu/sparq/sparq.h"
#include "tests/support/instruction_sets.h"
#include "tests/support/run_sparq.h"
#include "tests/support/sparq_case.h"

namespace headrace {
namespace {

using testing::Doubles;
using testing::Random;
using testing::SparqCall;
using testing::SparqCase;

const std::vector<const cpu::SparqOps*> kRunnable = testing::runnable(cpu::all_sparq_ops());

void expect_runs(SparqCall& call) {
  const Status bad = sparq_attention(call.tensors(), call.options(), {}, nullptr);
  ASSERT_FALSE(bad) << bad->message;
}

void run_with(SparqCall& call, const cpu::SparqOps& ops, int num_threads) {
  testing::run_sparq(call.tensors(), call.options(), ops, num_threads);
}

TEST(Sparq, IsSparqInDoubleOnEveryInstructionSet) {
  for (const cpu::SparqOps* ops : kRunnable) {
    SCOPED_TRACE(ops->name);
    testing::for_sparq_cases(3, [&](const SparqCase& c) {
      SparqCall call(c);
      run_with(call, *ops, c.seed % 2 == 0 ? 1 : 16);
      call.expect_sparq();
    });
  }
}

// Many units on one thread, few units on many: whole units, and tasks of keys.
TEST(Sparq, BitsDependNeitherOnThreadsNorOnTheBatch) {
  SparqCase c;
  c.dtype = DType::bf16;
  c.group = 2;
  c.seqlen_k = 9000;
  c.lengths = {9000, 5000, 1024};
  c.page_size = 16;
  c.num_keys = 60;
  for (const cpu::SparqOps* ops : kRunnable) {
    SparqCall one(c), many(c);
    run_with(one, *ops, 1);
    run_with(many, *ops, 32);
    EXPECT_EQ(one.out().bytes(), many.out().bytes()) << ops->name;
    EXPECT_EQ(one.alpha().bytes(), many.alpha().bytes()) << ops->name;
    for (std::int64_t b = 0; b < 3; ++b) {
      SparqCall alone(c);
      headrace_sparq_tensors t = alone.tensors();
      for (headrace_tensor* x :
           {&t.q, &t.out, &t.v_sum, &t.block_table, &t.seqused_k, &t.indices, &t.alpha})
        *x = *TensorView(*x).slice(0, b, b + 1);
      const Status bad = sparq_attention(t, alone.options(), {}, nullptr);
      ASSERT_FALSE(bad) << bad->message;
      EXPECT_EQ(alone.keys(b, 1), one.keys(b, 1));
      if (ops != kRunnable[0]) continue;  // the one that the library selects
      const std::int64_t row = b * one.out().view().strides[0];
      EXPECT_EQ(SparqCall::get(alone.out(), row), SparqCall::get(one.out(), row));
    }
  }
}

// Everything but the chosen components of all keys and the chosen keys may be NaN.
TEST(Sparq, ReadsTheCountedElementsOnly) {
  for (const std::int64_t page_size : {0, 16}) {
    SparqCase c;
    c.group = 4;
    c.seqlen_k = 1500;
    c.lengths = {1500, 700};
    c.page_size = page_size;
    SparqCall first(c), second(c);
    expect_runs(first);
    std::int64_t num_kept = 0;
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t head = 0; head < c.num_kv_heads; ++head) {
        const std::vector<std::int64_t> keys = first.keys(b, head);
        const std::vector<std::int64_t> chosen = first.chosen_components(b, head);
        for (std::int64_t j = 0; j < c.lengths[static_cast<std::size_t>(b)]; ++j) {
          for (std::int64_t i = 0; i < c.head_dim; ++i) {
            const bool is_kept = std::find(chosen.begin(), chosen.end(), i) != chosen.end();
            num_kept += is_kept;
            if (!is_kept)
              SparqCall::put(second.components(), second.component_at(b, j, head, i), NAN);
          }
          if (std::find(keys.begin(), keys.end(), j) != keys.end()) {
            num_kept += c.head_dim + c.head_dim_v;
            continue;
          }
          for (std::int64_t i = 0; i < c.head_dim; ++i)
            SparqCall::put(second.k(), second.at(second.k(), b, j, head, i), NAN);
          for (std::int64_t i = 0; i < c.head_dim_v; ++i)
            SparqCall::put(second.v(), second.at(second.v(), b, j, head, i), NAN);
        }
      }
    expect_runs(second);
    EXPECT_EQ(second.out().bytes(), first.out().bytes());
    EXPECT_EQ(second.alpha().bytes(), first.alpha().bytes());
    std::int64_t bytes = 0;
    for (const std::int32_t length : c.lengths)
      bytes += c.num_kv_heads *
               sparq_bytes(length, c.head_dim, c.head_dim_v, c.num_components, c.num_keys, 4);
    EXPECT_EQ(bytes, 4 * num_kept);
  }
}

TEST(Sparq, BytesOfACallSaturate) {
  EXPECT_EQ(sparq_bytes(4096, 128, 128, 32, 128, 2), 2 * (4096 * 32 + 128 * 256));
  EXPECT_EQ(sparq_bytes(100, 128, 64, 32, 100, 2), 2 * 100 * 192);  // dense
  EXPECT_EQ(sparq_bytes(-1, 128, 128, 32, 128, 2), 0);
  EXPECT_EQ(sparq_bytes(INT64_MAX, 128, 128, 32, 128, 2), INT64_MAX);
  EXPECT_EQ(sparq_bytes(8, INT64_MAX, 1, 1, 1, 2), INT64_MAX);
}

// ---- edge cases

TEST(Sparq, AQueryOfZerosHasEqualEstimates) {
  SparqCase c;
  c.lengths = {40, 12};
  SparqCall call(c);
  call.q().set(Doubles(static_cast<std::size_t>(call.q().view().num_elements()), 0.0));
  expect_runs(call);
  call.expect_sparq();
  // Ties: the local window, then the lowest keys.
  EXPECT_EQ(call.keys(0, 0), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 38, 39}));
  EXPECT_EQ(call.keys(1, 1), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 10, 11}));
}

TEST(Sparq, ALongWindowIsClampedToTheKeys) {
  SparqCase c;
  c.local_window = 1000;
  SparqCall call(c);
  expect_runs(call);
  call.expect_sparq();
  EXPECT_EQ(call.keys(0, 0), (std::vector<std::int64_t>{32, 33, 34, 35, 36, 37, 38, 39}));
}

TEST(Sparq, NanInAReadElementGivesNan) {
  SparqCase c;
  SparqCall call(c);
  const std::int64_t component = call.chosen_components(0, 0)[0];
  SparqCall::put(call.components(), call.component_at(0, 5, 0, component), NAN);
  expect_runs(call);
  EXPECT_TRUE(std::isnan(SparqCall::get(call.alpha(), 0)));
  EXPECT_TRUE(std::isnan(SparqCall::get(call.out(), 0)));
  EXPECT_FALSE(std::isnan(SparqCall::get(call.out(), call.out().view().strides[1])));  // head 1
}

TEST(Sparq, SumsOfAGroupBeyondF16AreFinite) {
  SparqCase c;
  c.dtype = DType::f16;
  c.group = 4;
  c.scale = 1e-5;
  SparqCall call(c);
  call.q().set(Doubles(static_cast<std::size_t>(call.q().view().num_elements()), 60000.0));
  expect_runs(call);
  call.expect_sparq();
}

TEST(SparqSelect, TakesTheLargestAndTheLowestOfEquals) {
  Random random(3);
  for (int round = 0; round < 300; ++round) {
    const std::int64_t size = random.between(1, 3000), count = random.between(0, size);
    const std::int64_t num_values = random.pick({1, 3, 50, 1 << 20});
    std::vector<float> values;
    for (std::int64_t i = 0; i < size; ++i)
      values.push_back(static_cast<float>(random.between(0, num_values)) *
                       (random.chance(50) ? 1e-38f : 1.0f));
    if (random.chance(20)) values[0] = NAN;
    if (random.chance(20)) values[static_cast<std::size_t>(size) - 1] = HUGE_VALF;
    std::vector<std::int32_t> want(static_cast<std::size_t>(size));
    std::iota(want.begin(), want.end(), 0);
    std::stable_sort(want.begin(), want.end(), [&](std::int32_t a, std::int32_t b) {
      const float x = values[static_cast<std::size_t>(a)], y = values[static_cast<std::size_t>(b)];
      return std::isnan(x) ? !std::isnan(y) : x > y;
    });
    want.resize(static_cast<std::size_t>(count));
    std::sort(want.begin(), want.end());
    std::vector<std::int32_t> got(static_cast<std::size_t>(count));
    std::vector<std::int32_t> candidates(static_cast<std::size_t>(size));
    cpu::select_largest(values.data(), size, count, candidates.data(), got.data());
    ASSERT_EQ(got, want) << "size " << size << " count " << count << " values " << num_values;
  }
}

// ---- the append

// Appends the tokens of a call's sequences in pieces; k_components and v_sum begin as NaN and 0.
void expect_append(const SparqCase& c, std::int64_t piece) {
  SparqCall want(c), call(c);
  std::fill(call.components().bytes().begin(), call.components().bytes().end(), 0xFF);
  call.v_sum().set(Doubles(static_cast<std::size_t>(call.v_sum().view().num_elements()), 0.0));
  const std::int64_t longest = *std::max_element(c.lengths.begin(), c.lengths.end());
  for (std::int64_t begin = 0; begin < longest; begin += piece) {
    std::vector<std::int64_t> slots;
    std::vector<std::int32_t> cu_seqlens = {0};
    for (std::int64_t b = 0; b < call.batch(); ++b) {
      const std::int64_t length = c.lengths[static_cast<std::size_t>(b)];
      for (std::int64_t j = begin; j < begin + piece; ++j) {
        const std::int64_t max_pages =
            (c.seqlen_k + c.page_size - 1) / std::max<std::int64_t>(c.page_size, 1);
        const std::int64_t page =
            c.page_size == 0 || j >= length
                ? b
                : call.block_table()[static_cast<std::size_t>(b * max_pages + j / c.page_size)];
        slots.push_back(j >= length ? -1 : page * call.page_size() + j % call.page_size());
      }
      cu_seqlens.push_back(static_cast<std::int32_t>(slots.size()));
    }
    headrace_sparq_append_tensors t{};
    t.struct_size = sizeof t;
    t.k = call.k().view();
    t.v = call.v().view();
    t.k_components = call.components().view();
    t.v_sum = call.v_sum().view();
    t.slot_mapping =
        TensorView(slots.data(), DType::i64, {static_cast<std::int64_t>(slots.size())});
    if (piece > 1) t.cu_seqlens = TensorView(cu_seqlens.data(), DType::i32, {call.batch() + 1});
    const Status bad = sparq_append(t, nullptr);
    ASSERT_FALSE(bad) << bad->message;
  }
  EXPECT_EQ(call.components().bytes(), want.components().bytes()) << testing::text_of(c);
  EXPECT_EQ(call.v_sum().bytes(), want.v_sum().bytes()) << testing::text_of(c);
}

// Slots that follow each other go on in the next page, where pages are in order.
TEST(SparqAppend, KeepsComponentsAndSumsUpToDate) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (const std::int64_t page_size : {0, 1, 16, 100})
      for (const std::int64_t piece : {1, 7, 200})
        for (const bool has_pages_in_order : {false, true}) {
          SparqCase c;
          c.dtype = dtype;
          c.page_size = page_size;
          c.has_pages_in_order = has_pages_in_order;
          c.is_head_major = piece == 7;
          c.gap = piece == 7 ? 3 : 0;
          c.seqlen_k = 150;
          c.lengths = {150, 0, 33};
          expect_append(c, piece);
        }
}

}  // namespace
}  // namespace headrace
