// Appends on the CPU against double, over dtypes, layouts, rotations, norms and page sizes.
#include "ops/kv_append.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "backends/cpu/elementwise/elementwise.h"
#include "backends/cpu/elementwise/kv_append.h"
#include "core/device.h"
#include "tests/support/kv_append_case.h"

namespace headrace::testing {
namespace {

using Bytes = std::vector<unsigned char>;

void run(AppendCall& call) {
  const headrace_rope_options rope = call.rope();
  const bool has_rope = call.options().rotation != Rotation::none;
  const Status bad =
      kv_append(call.tensors(), call.append_options(), has_rope ? &rope : nullptr, nullptr);
  ASSERT_FALSE(bad) << bad->message;
}

Bytes written(AppendCall& call) {
  Bytes all;
  for (Tensor* x : call.memory()) all.insert(all.end(), x->bytes().begin(), x->bytes().end());
  return all;
}

KvAppendArgs args_of(AppendCall& call) {
  const headrace_rope_options rope = call.rope();
  const bool has_rope = call.options().rotation != Rotation::none;
  return validate_kv_append(call.tensors(), call.append_options(), has_rope ? &rope : nullptr)
      .value();
}

TEST(KvAppend, WritesNormalisedAndRotatedHeads) {
  for_append_cases([](const AppendCase& c) {
    AppendCall call(c);
    run(call);
    call.expect_written("");
  });
}

// The norms and the tables of one call may have different dtypes.
TEST(KvAppend, ReadsEachNormAndTableInItsOwnDtype) {
  constexpr DType kDtypes[] = {DType::f32, DType::f16, DType::bf16};
  for (const DType dtype : kDtypes)
    for (const DType other : kDtypes)
      for (const RopeLayout layout : {RopeLayout::interleaved, RopeLayout::halves}) {
        AppendCase c;
        c.side_dtype = dtype;
        c.other_side_dtype = other;
        c.rotation = Rotation::tables;
        c.layout = layout;
        c.has_q_norm = c.has_k_norm = true;
        AppendCall call(c);
        run(call);
        call.expect_written(format_text("{} and {} ", dtype_name(dtype), dtype_name(other)));
      }
}

TEST(KvAppend, BitsOfATokenDependOnItAlone) {
  for_append_cases([](AppendCase c) {
    c.num_tokens = 7;
    AppendCall whole(c);
    run(whole);
    const Bytes want = written(whole);
    const std::string trace = text_of(c);
    for (const cpu::ElementwiseOps* ops : cpu::all_elementwise_ops()) {
      if ((detected_cpu_isa() & ops->cpu_isa) != ops->cpu_isa) continue;
      AppendCall call(c);
      for (const std::int64_t token : {6, 2, 0, 1, 3, 5, 4})
        ops->kv_append(args_of(call), {token, token + 1});
      ASSERT_EQ(written(call), want) << ops->name << ", token by token: " << trace;
    }
  });
}

TEST(KvAppend, BitsDoNotDependOnTheThreads) {
  AppendCase c;
  c.num_tokens = 300;
  c.num_heads = 8;
  c.head_dim = c.head_dim_v = c.rot_dim = 128;
  c.has_q_norm = c.has_k_norm = true;
  Bytes want;
  for (const int num_units : {1, 2, 3, 16}) {
    AppendCall call(c);
    DeviceInfo device = cpu_info().value();
    device.num_units = num_units;
    ASSERT_FALSE(cpu::kv_append(args_of(call), device));
    if (want.empty()) want = written(call);
    ASSERT_EQ(written(call), want) << num_units;
  }
}

// The last slot and the last position are in range; the next are not.
TEST(KvAppend, SlotsAndPositionsOutOfRangeWriteNothing) {
  AppendCase c;
  c.rotation = Rotation::tables;
  const auto expect_refused = [&](auto change, const std::string& text) {
    AppendCall call(c);
    change(call);
    const Bytes before = written(call);
    const headrace_rope_options rope = call.rope();
    const Status bad = kv_append(call.tensors(), call.append_options(), &rope, nullptr);
    ASSERT_TRUE(bad.has_value());
    EXPECT_EQ(bad->code, ErrorCode::invalid_argument);
    EXPECT_EQ(bad->message.find(text), 0u) << bad->message;
    EXPECT_NE(bad->message.find("nothing was written"), std::string::npos) << bad->message;
    EXPECT_EQ(written(call), before);
  };
  const std::int64_t num_slots = AppendCall(c).k_pages().view().shape[0] * c.page_size;
  const std::string slot_rule = ": must be below " + std::to_string(num_slots);
  expect_refused([&](AppendCall& call) { call.slots()[4] = num_slots; },
                 "slot_mapping[4]=" + std::to_string(num_slots) + slot_rule);
  expect_refused(
      [](AppendCall& call) { call.slots()[0] = std::numeric_limits<std::int64_t>::max(); },
      "slot_mapping[0]=9223372036854775807" + slot_rule);
  expect_refused([](AppendCall& call) { call.positions()[2] = 40; },
                 "positions[2]=40: must be 0 to 39");
  expect_refused([](AppendCall& call) { call.positions()[3] = -1; },
                 "positions[3]=-1: must be 0 to 39");
  // Of every token, also of one that is not stored, whether it has q, k and v, or one of them.
  for (const auto& [has_q, has_kv] : {std::pair{true, true}, {true, false}, {false, true}})
    for (const bool is_stored : {true, false})
      for (std::size_t token = 0; token < 5; ++token) {
        c.has_q = has_q;
        c.has_kv = has_kv;
        expect_refused(
            [&](AppendCall& call) {
              call.positions()[token] = 40;
              if (!is_stored) call.slots()[token] = -1;
            },
            format_text("positions[{}]=40: must be 0 to 39", token));
      }
  c.has_q = c.has_kv = true;
  AppendCall last(c);
  std::fill(last.slots().begin(), last.slots().end(), -5);
  last.slots()[4] = num_slots - 1;
  last.slots()[1] = std::numeric_limits<std::int64_t>::min();
  last.positions()[2] = 39;
  run(last);
  last.expect_written("last ");
}

TEST(KvAppend, FrequenciesTakeEveryPosition) {
  AppendCase c;
  for (const RopeLayout layout : {RopeLayout::interleaved, RopeLayout::halves}) {
    c.layout = layout;
    AppendCall call(c);
    call.positions() = {0, -1, -70000, std::numeric_limits<std::int32_t>::max(),
                        std::numeric_limits<std::int32_t>::min()};
    run(call);
    call.expect_written("far ");
  }
}

TEST(KvAppend, ATensorWithoutTokensOrHeadsIsNoError) {
  for (const bool has_rope : {false, true}) {
    AppendCase c;
    c.num_tokens = 0;
    c.rotation = has_rope ? Rotation::frequencies : Rotation::none;
    AppendCall no_tokens(c);
    run(no_tokens);
    c.num_tokens = 5;
    c.num_heads = 0;
    c.is_fused = false;
    AppendCall no_heads(c);
    run(no_heads);
    no_heads.expect_written("no heads ");
  }
}

// A NaN reaches its pair; with a norm its head; never another head.
TEST(KvAppend, NanReachesItsPairOrItsHead) {
  for (const bool has_norm : {false, true}) {
    AppendCase c;
    c.is_fused = false;
    c.is_in_place = true;
    c.has_q_norm = has_norm;
    AppendCall call(c);
    auto* q = static_cast<float*>(call.q_out().view().data);  // [tokens, 4, 16]
    q[(2 * 4 + 1) * 16 + 6] = std::numeric_limits<float>::quiet_NaN();
    run(call);
    for (std::int64_t i = 0; i < 5 * 4 * 16; ++i) {
      const bool is_hit = i / 2 == ((2 * 4 + 1) * 16 + 6) / 2;
      const bool is_head = i / 16 == 2 * 4 + 1;
      EXPECT_EQ(std::isnan(q[i]), has_norm ? is_head : is_hit) << i;
    }
  }
}

}  // namespace
}  // namespace headrace::testing
