// The structs of the paged KV cache, compiled with an older header.
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "headrace/kv_cache.hpp"
#include "headrace/step.hpp"
#include "support/older_structs.h"

namespace {

using namespace headrace;
using namespace headrace::testing;

TEST(OlderStructs, OfRopeOptions) {
  headrace_rope_options full, defaults;
  headrace_rope_options_init(&defaults);
  const auto outcome = [](const headrace_rope_options& options) {
    double values[9] = {};  // frequencies, attention factor
    const headrace_status status = headrace_rope_frequencies(&options, values, 8, values + 8);
    return status == HEADRACE_OK ? std::string(reinterpret_cast<const char*>(values), sizeof values)
                                 : failed(status);
  };
  const double own[] = {1, 2, 3, 4, 5, 6, 7, 8};
  const struct {
    const char* name;
    headrace_rope_scaling scaling;
    const double* frequencies;
    int num_steps;
  } cases[] = {
      // rot_dim, base, factor, then those of the scaling and attention_factor. Scalings that need
      // original_context_length fail before base and factor have an effect; mscale needs
      // mscale_all_dim.
      {"none", HEADRACE_ROPE_SCALING_NONE, own, 4},
      {"ntk", HEADRACE_ROPE_SCALING_NTK, nullptr, 4},
      {"dynamic ntk", HEADRACE_ROPE_SCALING_DYNAMIC_NTK, nullptr, 4},
      {"yarn", HEADRACE_ROPE_SCALING_YARN, nullptr, 7},
      {"llama3", HEADRACE_ROPE_SCALING_LLAMA3, nullptr, 5},
  };
  for (const auto& c : cases) {
    full = defaults;
    full.layout = HEADRACE_ROPE_HALVES;
    full.scaling = c.scaling;
    full.rot_dim = 16;
    full.base = 5000;
    full.factor = 3;
    full.original_context_length = 100;
    full.seqlen = 150;
    full.beta_fast = 5;
    full.beta_slow = 0.5;
    full.mscale = 0.7;
    full.mscale_all_dim = 0.3;
    full.low_freq_factor = 0.5;
    full.high_freq_factor = 7;
    full.attention_factor = 1.5;
    full.frequencies = c.frequencies;
    full.truncate = 0;
    expect_older_structs<headrace_rope_options>(c.name, full, defaults, sizeof(std::size_t),
                                                c.num_steps, outcome);
  }
}

// An append of three tokens with every tensor; `rope` and the options may be older.
struct Append {
  Numbers in;
  std::vector<float> out[3];
  std::int64_t slots[3] = {5, 0, 3};
  std::int32_t positions[3] = {3, 1, 7};
  headrace_kv_append_tensors t{};

  Append() {
    for (auto& x : out) x.assign(256, 0.25f);
    headrace_kv_append_tensors_init(&t);
    const auto view = [](std::vector<float>& x, std::initializer_list<std::int64_t> shape) {
      return TensorView(x.data(), DType::f32, shape);
    };
    t.k = t.v = t.q = view(in.values, {3, 2, 8});
    t.k_pages = view(out[0], {3, 2, 2, 8});
    t.v_pages = view(out[1], {3, 2, 2, 8});
    t.q_out = view(out[2], {3, 2, 8});
    t.slot_mapping = TensorView(slots, DType::i64, {3});
    t.positions = TensorView(positions, DType::i32, {3});
    t.cos = view(in.values, {9, 4});
    t.sin = TensorView(in.values.data() + 50, DType::f32, {9, 4});
    t.q_norm_weight = TensorView(in.values.data() + 7, DType::f32, {8});
    t.k_norm_weight = TensorView(in.values.data() + 30, DType::f32, {8});
  }
  Append(const Append&) = delete;

  std::string run(const headrace_kv_append_tensors& tensors,
                  const headrace_kv_append_options* options) {
    if (headrace_kv_append(&tensors, options, nullptr) != HEADRACE_OK)
      return failed(HEADRACE_INVALID_ARGUMENT);
    std::string bytes;
    for (const auto& x : out)
      bytes.append(reinterpret_cast<const char*>(x.data()), x.size() * sizeof(float));
    return bytes;
  }
};

TEST(OlderStructs, OfKvAppendOptions) {
  headrace_rope_options rope;
  headrace_rope_options_init(&rope);
  headrace_kv_append_options full, defaults;
  headrace_kv_append_options_init(&defaults);
  full = defaults;
  full.rope = &rope;
  full.norm_eps = 0.5;
  full.hadamard = 1;
  const auto outcome = [](const headrace_kv_append_options& options) {
    Append call;
    call.t.cos = call.t.sin = {};
    return call.run(call.t, &options);
  };
  expect_older_structs<headrace_kv_append_options>("kv_append_options", full, defaults,
                                                   sizeof(std::size_t), 3, outcome);
  // Its rope may be older, too.
  const auto with_rope = [&](std::size_t size) {
    headrace_rope_options older;
    headrace_rope_options_init(&older);
    older.layout = HEADRACE_ROPE_HALVES;
    older.base = 3;
    headrace_rope_options given = cut(older, size, garbage<headrace_rope_options>());
    headrace_kv_append_options options = defaults;
    options.rope = &given;
    return outcome(options);
  };
  EXPECT_EQ(with_rope(offsetof(headrace_rope_options, factor)), with_rope(sizeof rope));
  EXPECT_NE(with_rope(offsetof(headrace_rope_options, base)), with_rope(sizeof rope));
  EXPECT_NE(with_rope(4).find("rope.struct_size=4"), std::string::npos);
}

TEST(OlderStructs, OfKvAppendTensors) {
  headrace_kv_append_tensors defaults;
  headrace_kv_append_tensors_init(&defaults);
  std::string before;
  // Older headers end between tensors.
  for (std::size_t size = sizeof(std::size_t); size <= sizeof defaults;
       size += sizeof(headrace_tensor)) {
    SCOPED_TRACE(size);
    const auto outcome = [size](const headrace_kv_append_tensors& rest, bool is_whole) {
      Append call;
      headrace_kv_append_tensors t = cut(call.t, size, rest);
      if (is_whole) t.struct_size = sizeof t;
      return call.run(t, nullptr);
    };
    const std::string got = outcome(garbage<headrace_kv_append_tensors>(), false);
    EXPECT_EQ(got, outcome(defaults, true));
    // Without rotation, positions are not read.
    // Pages that are no codes have neither scales nor recent slots.
    EXPECT_EQ(got == before, size == offsetof(headrace_kv_append_tensors, cos) ||
                                 size > offsetof(headrace_kv_append_tensors, quantised));
    before = got;
  }
}

TEST(OlderStructs, OfKvCacheOptions) {
  headrace_kv_cache_options full, defaults;
  headrace_kv_cache_options_init(&defaults);
  full = defaults;
  full.num_layers = full.num_kv_heads = full.num_pages = 1;
  full.head_dim = 8;
  full.k_dtype = HEADRACE_I8;
  full.v_dtype = HEADRACE_I4X2;
  full.num_recent_pages = 2;
  const auto outcome = [](const headrace_kv_cache_options& options) {
    headrace_kv_cache* cache = nullptr;
    if (headrace_kv_cache_create(&options, &cache) != HEADRACE_OK)
      return failed(HEADRACE_INVALID_ARGUMENT);
    headrace_tensor k, v;
    headrace_kv_cache_k_pages(cache, 0, &k);
    headrace_kv_cache_v_pages(cache, 0, &v);
    headrace_kv_cache_destroy(cache);
    return std::to_string(k.dtype) + " " + std::to_string(v.dtype);
  };
  expect_older_structs<headrace_kv_cache_options>(
      "kv_cache_options", full, defaults, offsetof(headrace_kv_cache_options, k_dtype), 2, outcome);
}

TEST(OlderStructs, OfStepShape) {
  const ModelFile file(find_model_shape("smollm2-135m"), "Q8_0");
  const DeviceInfo device = cpu_info();
  headrace_step_shape full{}, defaults{};
  full.struct_size = defaults.struct_size = sizeof full;
  full.num_seqs = full.seqlen_q = 1;
  full.seqlen_k = 40;
  full.cache_dtype = HEADRACE_BF16;
  full.k_dtype = HEADRACE_I8;
  full.v_dtype = HEADRACE_I4X2;
  const auto outcome = [&](const headrace_step_shape& shape) {
    headrace_step* step = nullptr;
    if (headrace_step_explain(file.get(), &shape, &device, &step) != HEADRACE_OK)
      return failed(HEADRACE_INVALID_ARGUMENT);
    std::string text;
    for (std::int64_t i = 0; i < headrace_step_count(step); ++i) {
      headrace_operator_cost cost{};
      cost.struct_size = sizeof cost;
      headrace_step_get(step, i, &cost);
      text += cost.name + (' ' + std::to_string(cost.bytes)) + '\n';
    }
    headrace_step_destroy(step);
    return text;
  };
  // k_dtype and v_dtype share a word.
  expect_older_structs<headrace_step_shape>("step_shape", full, defaults,
                                            offsetof(headrace_step_shape, k_dtype), 1, outcome);
  full.k_dtype = HEADRACE_F16;
  EXPECT_EQ(outcome(full),
            "invalid_argument: shape.k_dtype=1: must be -1 (shape.cache_dtype) or codes; pass "
            "HEADRACE_I8, HEADRACE_F8E4M3, HEADRACE_I4X2, HEADRACE_U4X2 or HEADRACE_U2X4");
}

TEST(OlderStructs, OfKvBatch) {
  KvCache cache({.num_layers = 1,
                 .num_kv_heads = 1,
                 .head_dim = 8,
                 .num_pages = 4,
                 .k_dtype = DType::i8,
                 .num_recent_pages = 4});
  const std::int64_t sequence = cache.add({}).sequence;
  const std::int32_t num_tokens = 20;
  cache.reserve(sequence, num_tokens);
  headrace_kv_batch defaults;
  headrace_kv_batch_init(&defaults);
  const auto outcome = [&](const headrace_kv_batch& given) {
    std::vector<std::int32_t> recent_table(2, -1);
    std::vector<std::int64_t> recent_slots(20, -1);
    headrace_kv_batch batch = given;
    // Only fields that the caller's struct has are set.
    if (batch.struct_size > offsetof(headrace_kv_batch, recent_table) && batch.max_recent == 2)
      batch.recent_table = recent_table.data();
    if (batch.struct_size > offsetof(headrace_kv_batch, recent_slots) && batch.max_recent == 2)
      batch.recent_slots = recent_slots.data();
    if (headrace_kv_cache_fill_batch(cache.get(), &batch) != HEADRACE_OK)
      return failed(HEADRACE_INVALID_ARGUMENT);
    std::string text;
    for (const std::int32_t page : recent_table) text += std::to_string(page) + ' ';
    for (const std::int64_t slot : recent_slots) text += std::to_string(slot) + ' ';
    return text;
  };
  headrace_kv_batch batch = defaults;
  batch.sequences = &sequence;
  batch.num_tokens = &num_tokens;
  batch.num_sequences = 1;
  batch.num_slots = 20;
  const std::string none =
      outcome(cut(batch, offsetof(headrace_kv_batch, max_recent), garbage<headrace_kv_batch>()));
  batch.max_recent = 2;
  const std::string table =
      outcome(cut(batch, offsetof(headrace_kv_batch, recent_slots), garbage<headrace_kv_batch>()));
  const std::string both = outcome(batch);
  EXPECT_EQ(none.find("invalid"), std::string::npos) << none;
  EXPECT_EQ(none.substr(0, 5), "-1 -1");
  EXPECT_NE(table, none);
  EXPECT_NE(both, table);
  EXPECT_NE(
      outcome(cut(batch, offsetof(headrace_kv_batch, num_slots), batch)).find("batch.struct_size="),
      std::string::npos);
}

}  // namespace
