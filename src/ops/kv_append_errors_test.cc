// Every error of an append names the argument, what arrived, the rule and the remedy.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/kv_append.h"
#include "ops/rope_options.h"
#include "tests/support/every_rule.h"
#include "tests/support/golden_texts.h"

namespace headrace {
namespace {

constexpr std::int64_t kTokens = 3, kHeads = 4, kKvHeads = 2, kDim = 8, kDimV = 6, kPages = 5,
                       kPageSize = 2;

struct Call {
  alignas(16) float memory[12][512] = {};
  float factors[kKvHeads * kDim];
  std::int64_t slots[kTokens] = {0, 1, 2};
  std::int32_t positions[kTokens] = {0, 1, 2};
  headrace_kv_append_tensors t{};
  headrace_kv_append_options o = default_kv_append_options();
  headrace_rope_options rope = default_rope_options();
  bool has_rope = true;
  Stream stream = nullptr;

  Call() {
    std::ranges::fill(factors, 1.0F);
    const auto view = [&](int i, std::initializer_list<std::int64_t> shape) {
      return TensorView(memory[i], DType::f32, shape);
    };
    t.struct_size = sizeof t;
    t.q = view(0, {kTokens, kHeads, kDim});
    t.q_out = view(1, {kTokens, kHeads, kDim});
    t.k = view(2, {kTokens, kKvHeads, kDim});
    t.v = view(3, {kTokens, kKvHeads, kDimV});
    t.k_pages = view(4, {kPages, kPageSize, kKvHeads, kDim});
    t.v_pages = view(5, {kPages, kPageSize, kKvHeads, kDimV});
    t.slot_mapping = TensorView(slots, DType::i64, {kTokens});
    t.positions = TensorView(positions, DType::i32, {kTokens});
    t.q_norm_weight = view(6, {kDim});
    t.k_norm_weight = view(7, {kDim});
    t.channel_factors = TensorView(factors, DType::f32, {kKvHeads, kDim});
    rope.rot_dim = 4;
  }
  void use_tables() {
    t.cos = TensorView(memory[8], DType::f32, {10, 2});
    t.sin = TensorView(memory[9], DType::f32, {10, 2});
    rope.rot_dim = 0;
  }
  Status run() { return kv_append(t, o, has_rope ? &rope : nullptr, stream); }
};

struct Bad {
  std::function<void(Call&)> break_it;
  std::vector<std::string> parts;
};

void expect_refused(const Bad& bad, testing::GoldenTexts& texts) {
  Call call;
  bad.break_it(call);
  const Status status = call.run();
  ASSERT_TRUE(status.has_value()) << bad.parts[0];
  EXPECT_EQ(status->code, ErrorCode::invalid_argument) << status->message;
  texts.add(status->message);
  EXPECT_EQ(status->message.find(bad.parts[0]), 0u) << status->message;
  for (const std::string& part : bad.parts)
    EXPECT_NE(status->message.find(part), std::string::npos)
        << '"' << part << "\" is not in: " << status->message;
  for (const auto& memory : call.memory)
    for (const float x : memory) ASSERT_EQ(x, 0) << bad.parts[0] << ": something was written";
}

TEST(KvAppendErrors, GoodCallsRun) {
  Call call;
  EXPECT_FALSE(call.run());
  call.use_tables();
  EXPECT_FALSE(call.run());
  call.has_rope = false;  // tables alone
  EXPECT_FALSE(call.run());
  call.t.cos = call.t.sin = call.t.positions = TensorView();  // no rotation
  EXPECT_FALSE(call.run());
  call.t.q = call.t.q_out = call.t.q_norm_weight = TensorView();
  EXPECT_FALSE(call.run());
}

TEST(KvAppendErrors, WhatIsMissingOrStray) {
  testing::GoldenTexts texts("ops.txt");
  using T = headrace_kv_append_tensors;
  const auto without = [](headrace_tensor T::*member) {
    return [member](Call& c) { c.t.*member = TensorView(); };
  };
  const Bad cases[] = {
      {[](Call& c) { c.t = {}; }, {"q and k: not given", "required", "pass q with q_out"}},
      {without(&T::q), {"q_out: given without q", "must come with it", "leave out"}},
      {without(&T::k), {"v: given without k", "must come with it", "leave out v"}},
      {without(&T::q_out), {"q_out: not given, but q is", "pass a tensor"}},
      {without(&T::v), {"v: not given, but k is", "pass [num_tokens"}},
      {without(&T::k_pages), {"k_pages: not given, but k is", "pass [num_pages"}},
      {without(&T::v_pages), {"v_pages: not given, but k is", "head_dim_v"}},
      {without(&T::slot_mapping), {"slot_mapping: not given, but k is", "pass i64"}},
      {without(&T::positions), {"positions: not given, but a rotation is", "pass i32"}},
      {[](Call& c) { c.t.q = c.t.q_out = TensorView(); }, {"q_norm_weight: given without q"}},
      {[](Call& c) { c.use_tables(), c.t.sin = TensorView(); }, {"sin: not given, but cos is"}},
      {[](Call& c) { c.use_tables(), c.t.cos = TensorView(); }, {"cos: not given, but sin is"}},
  };
  for (const Bad& bad : cases) expect_refused(bad, texts);
}

TEST(KvAppendErrors, ShapesDtypesStridesAndDevices) {
  testing::GoldenTexts texts("ops.txt");
  const Bad cases[] = {
      {[](Call& c) { c.t.q.rank = 4; }, {"q.rank=4", "must be 3", "[num_tokens, heads"}},
      {[](Call& c) { c.t.q.data = nullptr; }, {"q.data=NULL", "must point"}},
      {[](Call& c) { c.t.q.shape[2] = 577; }, {"q.shape[2]=577", "1 to 576", "pass q"}},
      {[](Call& c) { c.t.v.shape[2] = 0; }, {"v.shape[2]=0", "1 to 576"}},
      {[](Call& c) { c.t.q.dtype = HEADRACE_F64; }, {"q.dtype=f64", "f32, f16 or bf16"}},
      {[](Call& c) { c.t.q.strides[2] = 2; }, {"q.strides[2]=2", "must be 1"}},
      {[](Call& c) { c.t.q_out.shape[0] = 2; }, {"q_out.shape[0]=2", "num_tokens=3 of q"}},
      {[](Call& c) { c.t.q_out.shape[1] = 3; }, {"q_out.shape[1]=3", "num_heads=4 of q"}},
      {[](Call& c) { c.t.q_out.shape[2] = 7; }, {"q_out.shape[2]=7", "head_dim=8 of q"}},
      {[](Call& c) { c.t.q_out.dtype = HEADRACE_I64; }, {"q_out.dtype=i64", "convert"}},
      {[](Call& c) { c.t.k.shape[0] = 2; }, {"k.shape[0]=2", "num_tokens=3 of q"}},
      {[](Call& c) { c.t.k.shape[2] = 4; }, {"k.shape[2]=4", "head_dim=8 of q"}},
      {[](Call& c) { c.t.k.dtype = HEADRACE_F16; }, {"k.dtype=f16", "equal q.dtype=f32"}},
      {[](Call& c) { c.t.v.dtype = HEADRACE_BF16; }, {"v.dtype=bf16", "equal q.dtype=f32"}},
      {[](Call& c) { c.t.v.shape[1] = 1; }, {"v.shape[1]=1", "num_kv_heads=2 of k"}},
      {[](Call& c) { c.t.k_pages.rank = 3; }, {"k_pages.rank=3", "must be 4", "page_size"}},
      {[](Call& c) { c.t.v_pages.rank = 3; }, {"v_pages.rank=3", "must be 4", "page_size"}},
      {[](Call& c) { c.t.k_pages.shape[2] = 1; }, {"k_pages.shape[2]=1", "num_kv_heads=2"}},
      {[](Call& c) { c.t.k_pages.shape[3] = 7; }, {"k_pages.shape[3]=7", "head_dim=8 of q"}},
      {[](Call& c) { c.t.k_pages.strides[3] = -1; }, {"k_pages.strides[3]=-1", "must be 1"}},
      {[](Call& c) { c.t.v_pages.shape[0] = 4; }, {"v_pages.shape[0]=4", "num_pages=5"}},
      {[](Call& c) { c.t.v_pages.shape[1] = 1; }, {"v_pages.shape[1]=1", "page_size=2"}},
      {[](Call& c) { c.t.v_pages.shape[3] = 8; }, {"v_pages.shape[3]=8", "head_dim_v=6 of v"}},
      {[](Call& c) { c.t.slot_mapping.dtype = HEADRACE_I32; },
       {"slot_mapping.dtype=i32", "must be i64", "convert"}},
      {[](Call& c) { c.t.slot_mapping.shape[0] = 2; }, {"slot_mapping.shape[0]=2", "=3 of q"}},
      {[](Call& c) { c.t.positions.dtype = HEADRACE_I64; }, {"positions.dtype=i64", "must be i32"}},
      {[](Call& c) { c.t.positions.shape[0] = 4; }, {"positions.shape[0]=4", "num_tokens=3"}},
      {[](Call& c) { c.t.q_norm_weight.shape[0] = 4; },
       {"q_norm_weight.shape[0]=4", "head_dim=8 of q"}},
      {[](Call& c) { c.t.k_norm_weight.dtype = HEADRACE_U32; }, {"k_norm_weight.dtype=u32"}},
      {[](Call& c) { c.t.k.device_type = HEADRACE_CUDA; }, {"k.device_type=1", "equal q."}},
      {[](Call& c) { c.t.positions.device_type = HEADRACE_CUDA; }, {"positions.device_type=1"}},
      {[](Call& c) { c.stream = &c; }, {"stream=", "NULL on CPU"}},
  };
  for (const Bad& bad : cases) expect_refused(bad, texts);
}

TEST(KvAppendErrors, RotationsAndNorms) {
  testing::GoldenTexts texts("ops.txt");
  const Bad cases[] = {
      {[](Call& c) { c.rope.rot_dim = 3; }, {"rot_dim=3 (of the options)", "must be even"}},
      {[](Call& c) { c.rope.rot_dim = 10; }, {"rot_dim=10", "2 to head_dim=8"}},
      {[](Call& c) { c.rope.rot_dim = -2; }, {"rot_dim=-2"}},
      {[](Call& c) {
         c.rope.rot_dim = 0;
         c.t.q.shape[2] = c.t.q_out.shape[2] = c.t.k.shape[2] = c.t.k_pages.shape[3] = 7;
         c.t.q_norm_weight.shape[0] = c.t.k_norm_weight.shape[0] = c.t.channel_factors.shape[1] = 7;
       },
       {"rot_dim=7 (0 is head_dim)", "must be even"}},
      {[](Call& c) { c.rope.layout = 2; }, {"layout=2", "0 (interleaved) or 1 (halves)"}},
      {[](Call& c) { c.use_tables(), c.rope.layout = 2; }, {"layout=2"}},
      {[](Call& c) { c.rope.base = -1; }, {"base=-1", "must be finite and positive"}},
      {[](Call& c) { c.use_tables(), c.rope.rot_dim = 8; },
       {"rot_dim=8", "must be 0 or 4", "pass 0 with cos"}},
      {[](Call& c) { c.use_tables(), c.t.cos.shape[1] = c.t.sin.shape[1] = 5; },
       {"rot_dim=10 (twice cos.shape[1])", "2 to head_dim=8"}},
      {[](Call& c) { c.use_tables(), c.t.cos.rank = 1; }, {"cos.rank=1", "must be 2"}},
      {[](Call& c) { c.use_tables(), c.t.sin.shape[0] = 9; },
       {"sin.shape[0]=9", "max_positions=10 of cos"}},
      {[](Call& c) { c.use_tables(), c.t.cos.strides[1] = 2; }, {"cos.strides[1]=2"}},
      {[](Call& c) { c.use_tables(), c.t.cos.dtype = HEADRACE_F64; }, {"cos.dtype=f64"}},
      {[](Call& c) { c.o.norm_eps = -1; }, {"norm_eps=-1", "not negative", "pass 1e-6"}},
      {[](Call& c) { c.o.norm_eps = NAN; }, {"norm_eps=nan", "finite as f32"}},
      {[](Call& c) { c.o.norm_eps = 1e300; }, {"norm_eps=1e+300", "finite as f32"}},
      {[](Call& c) { c.t.channel_factors.shape[0] = 3; },
       {"channel_factors.shape[0]=3", "num_kv_heads=2 of k"}},
      {[](Call& c) { c.t.channel_factors.shape[1] = 7; },
       {"channel_factors.shape[1]=7", "head_dim=8 of q"}},
      {[](Call& c) { c.t.channel_factors.dtype = HEADRACE_BF16; },
       {"channel_factors.dtype=bf16", "must be f32"}},
      {[](Call& c) { c.t.q.shape[1] = c.t.q_out.shape[1] = 3; },
       {"channel_factors.shape[0]=2", "must divide num_heads=3 of q"}},
      {[](Call& c) { c.o.hadamard = 2; }, {"hadamard=2", "0 or 1", "pass 1 for keys of 4 bits"}},
  };
  for (const Bad& bad : cases) expect_refused(bad, texts);
}

// Slots and positions have strides of their own: the last entry is the bad one.
TEST(KvAppendErrors, IndicesAreReadWithTheirStrides) {
  testing::GoldenTexts texts("ops.txt");
  static std::int64_t slots[] = {0, 0, 1, 0, 10};
  static std::int32_t positions[] = {0, 0, 1, 0, 10};
  const Bad cases[] = {
      {[](Call& c) {
         c.t.slot_mapping = TensorView(slots, DType::i64, {kTokens});
         c.t.slot_mapping.strides[0] = 2;
       },
       {"slot_mapping[2]=10: must be below 10"}},
      {[](Call& c) {
         c.use_tables();
         c.t.positions = TensorView(positions, DType::i32, {kTokens});
         c.t.positions.strides[0] = 2;
       },
       {"positions[2]=10: must be 0 to 9"}},
  };
  for (const Bad& bad : cases) expect_refused(bad, texts);
}

TEST(KvAppendErrors, OutputsThatOverlap) {
  testing::GoldenTexts texts("ops.txt");
  const Bad cases[] = {
      {[](Call& c) { c.t.q_out.strides[1] = 0; }, {"q_out overlaps itself"}},
      {[](Call& c) { c.t.k_pages.strides[0] = 0; }, {"k_pages overlaps itself"}},
      {[](Call& c) { c.t.v_pages.strides[2] = 1; }, {"v_pages overlaps itself"}},
      {[](Call& c) { c.t.q_out.data = c.memory[0] + 1; },
       {"q_out overlaps q", "may be the same view"}},
      {[](Call& c) { c.t.q_out = c.t.q, c.t.q_out.dtype = HEADRACE_F16; }, {"q_out overlaps q"}},
      {[](Call& c) {  // elements of one size and two types
         c.t.q.dtype = c.t.k.dtype = c.t.v.dtype = HEADRACE_F16;
         c.t.q_out = c.t.q, c.t.q_out.dtype = HEADRACE_BF16;
       },
       {"q_out overlaps q"}},
      {[](Call& c) { c.t.q.shape[1] = kKvHeads, c.t.q_out = c.t.k; }, {"q_out overlaps k"}},
      {[](Call& c) { c.t.q_out.data = c.memory[2]; }, {"q_out overlaps k", "memory of its own"}},
      {[](Call& c) { c.t.v_pages.data = c.memory[4]; }, {"k_pages overlaps v_pages"}},
      {[](Call& c) { c.t.k_pages.data = c.memory[3] + 4; }, {"k_pages overlaps v:"}},
      {[](Call& c) { c.t.k_pages.data = c.positions; }, {"k_pages overlaps positions"}},
      {[](Call& c) { c.t.v_pages.data = c.slots; }, {"v_pages overlaps slot_mapping"}},
      {[](Call& c) { c.use_tables(), c.t.q_out.data = c.memory[9]; }, {"q_out overlaps sin"}},
      {[](Call& c) { c.t.q_out.data = c.memory[7]; }, {"q_out overlaps k_norm_weight"}},
  };
  for (const Bad& bad : cases) expect_refused(bad, texts);
}

// Every tensor that an append may have, each in memory of its own. The outputs come first.
struct FullCall {
  static constexpr std::size_t kNumOutputs = 7;
  alignas(16) float memory[18][512] = {};
  headrace_kv_append_tensors t{};
  headrace_quantised_kv x{};
  const std::vector<std::pair<std::string, headrace_tensor*>> all = {
      {"q_out", &t.q_out},
      {"k_pages", &t.k_pages},
      {"v_pages", &t.v_pages},
      {"k_scale", &x.k_scale},
      {"v_scale", &x.v_scale},
      {"k_recent", &x.k_recent},
      {"v_recent", &x.v_recent},
      {"q", &t.q},
      {"k", &t.k},
      {"v", &t.v},
      {"slot_mapping", &t.slot_mapping},
      {"recent_slots", &t.recent_slots},
      {"positions", &t.positions},
      {"cos", &t.cos},
      {"sin", &t.sin},
      {"q_norm_weight", &t.q_norm_weight},
      {"k_norm_weight", &t.k_norm_weight},
      {"channel_factors", &t.channel_factors}};

  FullCall() {
    const auto view = [&](int i, DType dtype, std::initializer_list<std::int64_t> shape) {
      return TensorView(memory[i], dtype, shape);
    };
    t.struct_size = sizeof t;
    x.struct_size = sizeof x;
    t.quantised = &x;
    t.q_out = view(0, DType::f32, {kTokens, kHeads, kDim});
    t.k_pages = view(1, DType::i8, {kPages, kPageSize, kKvHeads, kDim});
    t.v_pages = view(2, DType::i8, {kPages, kPageSize, kKvHeads, kDimV});
    x.k_scale = view(3, DType::f32, {kPages, kPageSize, kKvHeads});
    x.v_scale = view(4, DType::f32, {kPages, kPageSize, kKvHeads});
    x.k_recent = view(5, DType::f32, {kPages, kPageSize, kKvHeads, kDim});
    x.v_recent = view(6, DType::f32, {kPages, kPageSize, kKvHeads, kDimV});
    t.q = view(7, DType::f32, {kTokens, kHeads, kDim});
    t.k = view(8, DType::f32, {kTokens, kKvHeads, kDim});
    t.v = view(9, DType::f32, {kTokens, kKvHeads, kDimV});
    t.slot_mapping = view(10, DType::i64, {kTokens});
    t.recent_slots = view(11, DType::i64, {kTokens});
    t.positions = view(12, DType::i32, {kTokens});
    t.cos = view(13, DType::f32, {10, 2});
    t.sin = view(14, DType::f32, {10, 2});
    t.q_norm_weight = view(15, DType::f32, {kDim});
    t.k_norm_weight = view(16, DType::f32, {kDim});
    std::ranges::fill(memory[17], 1.0F);
    t.channel_factors = view(17, DType::f32, {kKvHeads, kDim});
  }
  FullCall(const FullCall&) = delete;
  Status run() { return kv_append(t, default_kv_append_options(), nullptr, nullptr); }
};

TEST(KvAppendErrors, CodesWithZeroPoints) {
  const struct {
    std::function<void(FullCall&)> break_it;
    const char* text;
  } cases[] = {
      {[](FullCall& c) {
         c.t.k_pages = TensorView(c.memory[1], DType::u2x4, {5, 2, kKvHeads, 2});
       },
       "k_pages.dtype=u2x4 with pages of 2 and groups of 2 recent keys: both must be multiples of "
       "32"},
      {[](FullCall& c) {
         c.t.k_pages = TensorView(c.memory[1], DType::u4x2, {1, 32, kKvHeads, 4});
         c.t.v_pages = TensorView(c.memory[2], DType::i8, {1, 32, kKvHeads, kDimV});
         c.x.k_recent = c.x.v_recent = c.t.recent_slots = TensorView();
       },
       "k_recent: not given, but k_pages of codes with zero points is; pass k_recent, v_recent and "
       "recent_slots"},
      {[](FullCall& c) {
         c.t.v_pages = TensorView(c.memory[2], DType::u2x4, {5, 2, kKvHeads, 2});
       },
       "v_pages.dtype=u2x4 with heads of 6 elements: must be a multiple of 4"},
      {[](FullCall& c) {
         c.t.v_pages = TensorView(c.memory[2], DType::u4x2, {5, 2, kKvHeads, 3});
       },
       "v_scale.rank=3: must be 4"},
      {[](FullCall& c) {
         c.t.v_pages = TensorView(c.memory[2], DType::u4x2, {5, 2, kKvHeads, 3});
         c.x.v_scale = TensorView(c.memory[4], DType::f32, {5, 2, kKvHeads, 1});
       },
       "v_scale.dtype=f32: must be u32"},
      {[](FullCall& c) {
         c.t.k_pages = TensorView(c.memory[1], DType::u4x2, {1, 32, kKvHeads, kDim / 2});
         c.t.v_pages = TensorView(c.memory[2], DType::i8, {1, 32, kKvHeads, kDimV});
         c.x.k_scale = TensorView(c.memory[3], DType::u32, {1, 1, kKvHeads, kDim});
         c.x.v_scale = TensorView(c.memory[4], DType::f32, {1, 32, kKvHeads});
         c.x.k_recent = TensorView(c.memory[5], DType::f32, {1, 32, kKvHeads, kDim});
         c.x.v_recent = TensorView(c.memory[6], DType::f32, {1, 32, kKvHeads, kDimV});
         c.x.k_scale.strides[3] = 2;
       },
       "k_scale.strides[3]=2"},
  };
  for (const auto& [break_it, text] : cases) {
    FullCall call;
    break_it(call);
    const Status bad = call.run();
    ASSERT_TRUE(bad) << text;
    EXPECT_EQ(bad->message.find(text), 0u) << bad->message << ", not " << text;
  }
}

TEST(KvAppendErrors, ScalesOfWhatHasNoCodes) {
  for (const bool is_of_k : {false, true}) {
    FullCall call;
    if (is_of_k)
      call.t.k_pages = TensorView(call.memory[1], DType::f32, {kPages, kPageSize, kKvHeads, kDim});
    else
      call.t.v_pages = TensorView(call.memory[2], DType::f32, {kPages, kPageSize, kKvHeads, kDimV});
    const Status bad = call.run();
    ASSERT_TRUE(bad);
    EXPECT_EQ(bad->message,
              is_of_k ? "k_scale: given, but k_pages.dtype=f32 has no codes; leave k_scale out"
                      : "v_scale: given, but v_pages.dtype=f32 has no codes; leave v_scale out");
  }
}

TEST(KvAppendErrors, EveryRuleOfEveryTensor) {
  struct Whole : FullCall {
    std::vector<testing::Role> roles() {
      return {{"q_out", &t.q_out, true},
              {"k_pages", &t.k_pages, true, false, true},
              {"v_pages", &t.v_pages, true, false, true},
              {"k_scale", &x.k_scale},
              {"v_scale", &x.v_scale},
              {"k_recent", &x.k_recent, true, false, true},
              {"v_recent", &x.v_recent, true},
              {"q", &t.q, true, false, true},
              {"k", &t.k, true, false, true},
              {"v", &t.v, true, false, true},
              {"slot_mapping", &t.slot_mapping},
              {"recent_slots", &t.recent_slots},
              {"positions", &t.positions},
              {"cos", &t.cos, true, false, true, 0},
              {"sin", &t.sin, true},
              {"q_norm_weight", &t.q_norm_weight, true},
              {"k_norm_weight", &t.k_norm_weight, true},
              {"channel_factors", &t.channel_factors, true}};
    }
    std::vector<float> results() { return {&memory[0][0], &memory[7][0]}; }
  };
  testing::expect_every_rule([] { return std::make_unique<Whole>(); });
}

// An output in the memory of each other tensor, of which it may only be the same view as its input.
TEST(KvAppendErrors, NoOutputOverlapsAnyOtherTensor) {
  const Status good = FullCall().run();
  ASSERT_FALSE(good) << good->message;
  for (std::size_t i = 0; i < FullCall::kNumOutputs; ++i)
    for (std::size_t j = 0; j < FullCall().all.size(); ++j) {
      if (i == j) continue;
      FullCall call;
      const auto& [output, moved] = call.all[i];
      const auto& [other, stays] = call.all[j];
      moved->data = stays->data;
      if (output == "q_out" && other == "q") moved->data = call.memory[j] + 4;
      const std::string expected =
          i < j ? output + " overlaps " + other : other + " overlaps " + output;
      const Status bad = call.run();
      ASSERT_TRUE(bad) << expected;
      EXPECT_EQ(bad->message.find(expected), 0u) << bad->message << ", not " << expected;
    }
}

}  // namespace
}  // namespace headrace
