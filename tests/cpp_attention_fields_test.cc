// The structs of the C++ wrappers of attention and KV caches: each of their fields reaches the C
// struct. Functions of the library that are defined here take the place of those that are linked:
// they keep what they were given and do nothing.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "headrace/kv_cache.hpp"
#include "headrace/sparq.hpp"
#include "headrace/tuning.hpp"
#include "support/fields.h"

namespace {

using namespace headrace;
using namespace headrace::testing;

Shown arrived;

Shown shown(const headrace_rope_options& c) {
  return {SHOW(layout),
          SHOW(scaling),
          SHOW(rot_dim),
          SHOW(base),
          SHOW(factor),
          SHOW(original_context_length),
          SHOW(seqlen),
          SHOW(beta_fast),
          SHOW(beta_slow),
          SHOW(mscale),
          SHOW(mscale_all_dim),
          SHOW(low_freq_factor),
          SHOW(high_freq_factor),
          SHOW(attention_factor),
          SHOW(truncate),
          {"frequencies", c.frequencies == nullptr ? "" : show(c.frequencies, c.rot_dim / 2)}};
}

}  // namespace

extern "C" {

headrace_status headrace_kv_cache_create(const headrace_kv_cache_options*,
                                         headrace_kv_cache** cache) {
  *cache = nullptr;
  return HEADRACE_OK;
}

headrace_status headrace_kv_cache_fill_batch(const headrace_kv_cache*,
                                             const headrace_kv_batch* given) {
  const headrace_kv_batch& c = *given;
  arrived = {SHOW(sequences),   SHOW(num_tokens),   SHOW(num_sequences), SHOW(max_pages),
             SHOW(block_table), SHOW(seqused_k),    SHOW(slot_mapping),  SHOW(num_slots),
             SHOW(max_recent),  SHOW(recent_table), SHOW(recent_slots)};
  return HEADRACE_OK;
}

headrace_status headrace_kv_append(const headrace_kv_append_tensors*,
                                   const headrace_kv_append_options* given, void*) {
  const headrace_kv_append_options& c = *given;
  arrived = {
      {"rope", c.rope == nullptr ? "" : show(shown(*c.rope))}, SHOW(norm_eps), SHOW(hadamard)};
  return HEADRACE_OK;
}

headrace_status headrace_sparq_append(const headrace_sparq_append_tensors* given, void*) {
  const headrace_sparq_append_tensors& c = *given;
  arrived = {SHOW(k),     SHOW(slot_mapping), SHOW(k_components), SHOW(v),
             SHOW(v_sum), SHOW(cu_seqlens),   SHOW(k_slots),      SHOW(v_scale)};
  return HEADRACE_OK;
}

headrace_status headrace_ceilings_measure(const headrace_device_info*,
                                          const headrace_ceiling_options* given,
                                          headrace_ceilings** ceilings) {
  const headrace_ceiling_options& c = *given;
  arrived = {SHOW(num_rounds), SHOW(round_seconds)};
  *ceilings = nullptr;
  return HEADRACE_OK;
}

headrace_status headrace_plan_tune(const headrace_plan*, const headrace_attention_tensors*,
                                   const headrace_attention_gradients*, const headrace_run_options*,
                                   const headrace_tune_options* given, void*, headrace_tuning*,
                                   headrace_tuned_call* call) {
  const headrace_tune_options& c = *given;
  std::string before_call;
  if (c.before_call != nullptr) {
    c.before_call(c.user, nullptr);
    before_call = "called";
  }
  std::string ceilings;
  for (std::int64_t i = 0; i < c.num_ceilings; ++i) ceilings += show(c.ceilings[i].value) + ' ';
  arrived = {
      SHOW(num_rounds), SHOW(round_seconds), {"ceilings", ceilings}, {"before_call", before_call}};
  call->kernel = call->call = call->config = "";
  return HEADRACE_OK;
}

}  // extern "C"

namespace {

TEST(CppOptions, OfAttention) {
  using T = AttentionOptions;
  expect_every_field_of_to_c<T>(
      [](const headrace_attention_options& c) -> Shown {
        return {SHOW(softmax_scale),    SHOW(softcap),        SHOW(causal),
                SHOW(window_left),      SHOW(window_right),   SHOW(dropout_p),
                SHOW(dropout_seed),     SHOW(checked),        SHOW(max_seqlen_q),
                SHOW(max_seqlen_k),     SHOW(num_splits),     SHOW(strict_rows),
                SHOW(deterministic),    SHOW(dropout_offset), SHOW(strict_fallback),
                SHOW(max_shared_prefix)};
      },
      {CHANGE(T, softmax_scale, 0.5), CHANGE(T, softcap, 30.0), CHANGE(T, causal, Causal::top_left),
       CHANGE(T, window_left, 5), CHANGE(T, window_right, 6), CHANGE(T, dropout_p, 0.25),
       CHANGE(T, dropout_seed, 7u), CHANGE(T, dropout_offset, 8u), CHANGE(T, max_seqlen_q, 9),
       CHANGE(T, max_seqlen_k, 10), CHANGE(T, num_splits, 11), CHANGE(T, strict_fallback, true),
       CHANGE(T, strict_rows, true), CHANGE(T, checked, true), CHANGE(T, deterministic, true),
       CHANGE(T, max_shared_prefix, 12)});
}

TEST(CppOptions, TensorsOfAttention) {
  using T = AttentionTensors;
  expect_every_field_of_to_c<T>(
      [](const headrace_attention_tensors& c) -> Shown {
        return {SHOW(q),
                SHOW(k),
                SHOW(v),
                SHOW(out),
                SHOW(lse),
                SHOW(bias),
                SHOW(cu_seqlens_q),
                SHOW(cu_seqlens_k),
                SHOW(mask),
                SHOW(tree_mask),
                SHOW(alibi_slopes),
                SHOW(sinks),
                SHOW(block_table),
                SHOW(probs),
                SHOW(seqused_k),
                SHOW(page_indptr),
                SHOW(quantised)};
      },
      {TENSOR(T, q), TENSOR(T, k), TENSOR(T, v), TENSOR(T, out), TENSOR(T, lse),
       TENSOR(T, cu_seqlens_q), TENSOR(T, cu_seqlens_k), TENSOR(T, alibi_slopes), TENSOR(T, bias),
       TENSOR(T, mask), TENSOR(T, tree_mask), TENSOR(T, sinks), TENSOR(T, probs),
       TENSOR(T, block_table), TENSOR(T, page_indptr), TENSOR(T, seqused_k),
       CHANGE(T, quantised, handle<const headrace_quantised_kv>())});
}

TEST(CppOptions, GradientsAndRunsOfAttention) {
  using T = AttentionGradients;
  expect_every_field_of_to_c<T>(
      [](const headrace_attention_gradients& c) -> Shown {
        return {SHOW(dout), SHOW(dlse), SHOW(dq), SHOW(dk), SHOW(dv), SHOW(dbias), SHOW(dsinks)};
      },
      {TENSOR(T, dout), TENSOR(T, dlse), TENSOR(T, dq), TENSOR(T, dk), TENSOR(T, dv),
       TENSOR(T, dbias), TENSOR(T, dsinks)});
  expect_every_field_of_to_c<RunOptions>(
      [](const headrace_run_options& c) -> Shown {
        return {SHOW(dropout_seed), SHOW(dropout_offset)};
      },
      {CHANGE(RunOptions, dropout_seed, 7u), CHANGE(RunOptions, dropout_offset, 8u)});
}

TEST(CppOptions, OfSoftmax) {
  using T = SoftmaxOptions;
  expect_every_field_of_to_c<T>(
      [](const headrace_softmax_options& c) -> Shown {
        return {SHOW(scale), SHOW(axis), SHOW(algorithm)};
      },
      {CHANGE(T, scale, 0.5), CHANGE(T, axis, 2), CHANGE(T, algorithm, SoftmaxAlgorithm::online)});
}

TEST(CppOptions, OfSparq) {
  using T = SparqOptions;
  expect_every_field_of_to_c<T>(
      [](const headrace_sparq_options& c) -> Shown {
        return {SHOW(softmax_scale), SHOW(num_components), SHOW(num_keys), SHOW(local_window),
                SHOW(max_seqlen_k)};
      },
      {CHANGE(T, softmax_scale, 0.5), CHANGE(T, num_components, 5), CHANGE(T, num_keys, 6),
       CHANGE(T, local_window, 7), CHANGE(T, max_seqlen_k, 8)});
  using U = SparqTensors;
  expect_every_field_of_to_c<U>(
      [](const headrace_sparq_tensors& c) -> Shown {
        return {SHOW(q),       SHOW(k),     SHOW(k_components), SHOW(v),
                SHOW(out),     SHOW(v_sum), SHOW(block_table),  SHOW(seqused_k),
                SHOW(indices), SHOW(alpha), SHOW(quantised)};
      },
      {TENSOR(U, q), TENSOR(U, k), TENSOR(U, k_components), TENSOR(U, v), TENSOR(U, out),
       TENSOR(U, v_sum), TENSOR(U, block_table), TENSOR(U, seqused_k), TENSOR(U, indices),
       TENSOR(U, alpha), CHANGE(U, quantised, handle<const headrace_quantised_kv>())});
  using A = SparqAppendTensors;
  expect_every_field<A>(
      [](const A& tensors) {
        sparq_append(tensors);
        return arrived;
      },
      {TENSOR(A, k), TENSOR(A, slot_mapping), TENSOR(A, k_components), TENSOR(A, v),
       TENSOR(A, v_sum), TENSOR(A, cu_seqlens), TENSOR(A, k_slots), TENSOR(A, v_scale)});
}

TEST(CppOptions, OfKvCaches) {
  using T = KvCacheOptions;
  expect_every_field_of_to_c<T>(
      [](const headrace_kv_cache_options& c) -> Shown {
        return {SHOW(num_layers), SHOW(num_kv_heads),    SHOW(head_dim),  SHOW(head_dim_v),
                SHOW(num_pages),  SHOW(num_host_pages),  SHOW(page_size), SHOW(dtype),
                SHOW(layout),     SHOW(device_type),     SHOW(device_id), SHOW(k_dtype),
                SHOW(v_dtype),    SHOW(num_recent_pages)};
      },
      {CHANGE(T, num_layers, 2), CHANGE(T, num_kv_heads, 3), CHANGE(T, head_dim, 4),
       CHANGE(T, head_dim_v, 5), CHANGE(T, num_pages, 6), CHANGE(T, num_host_pages, 7),
       CHANGE(T, page_size, 8), CHANGE(T, dtype, DType::bf16), CHANGE(T, layout, KvLayout::hnd),
       CHANGE(T, device_type, HEADRACE_CUDA), CHANGE(T, device_id, 9),
       CHANGE(T, k_dtype, DType::i8), CHANGE(T, v_dtype, DType::u4x2),
       CHANGE(T, num_recent_pages, 10)});
}

TEST(CppOptions, BatchesOfKvCaches) {
  KvCache cache({});
  std::vector<std::int64_t> sequences(3), slots(5), recent_slots(5);
  std::vector<std::int32_t> num_tokens(3), block_table(6), seqused_k(3), recent_table(12);
  const Shown all = {{"sequences", show(sequences.data())},
                     {"num_tokens", show(num_tokens.data())},
                     {"num_sequences", "3"},
                     {"max_pages", "2"},
                     {"block_table", show(block_table.data())},
                     {"seqused_k", show(seqused_k.data())},
                     {"slot_mapping", show(slots.data())},
                     {"num_slots", "5"},
                     {"max_recent", "4"},
                     {"recent_table", show(recent_table.data())},
                     {"recent_slots", show(recent_slots.data())}};
  const KvBatch batch{sequences, num_tokens,   2,           block_table, seqused_k, slots,
                      4,         recent_table, recent_slots};
  cache.fill_batch(batch);
  EXPECT_EQ(arrived, all);
  EXPECT_EQ(num_fields<KvBatch>(), 9u);
  // Arrays that are not wanted are null, each alone.
  const auto without = [&](const std::string& name, auto field) {
    KvBatch less = batch;
    less.*field = {};
    cache.fill_batch(less);
    Shown expected = all;
    expected[name] = "0";
    EXPECT_EQ(arrived, expected);
  };
  without("block_table", &KvBatch::block_table);
  without("seqused_k", &KvBatch::seqused_k);
  without("slot_mapping", &KvBatch::slot_mapping);
  without("recent_table", &KvBatch::recent_table);
  without("recent_slots", &KvBatch::recent_slots);
}

TEST(CppOptions, OfRope) {
  using T = RopeOptions;
  static const std::vector<double> frequencies = {0.5, 0.25};
  const T four{.rot_dim = 4};  // twice the number of the frequencies
  expect_every_field_of_to_c<T>(
      shown,
      {CHANGE(T, layout, RopeLayout::halves),
       CHANGE(T, scaling, RopeScaling::yarn),
       CHANGE(T, rot_dim, 8),
       CHANGE(T, base, 5e5),
       CHANGE(T, factor, 2.0),
       CHANGE(T, original_context_length, 5),
       CHANGE(T, seqlen, 6),
       CHANGE(T, beta_fast, 7.0),
       CHANGE(T, beta_slow, 8.0),
       CHANGE(T, mscale, 9.0),
       CHANGE(T, mscale_all_dim, 10.0),
       CHANGE(T, low_freq_factor, 11.0),
       CHANGE(T, high_freq_factor, 12.0),
       CHANGE(T, attention_factor, 13.0),
       {"frequencies", [](T& o) { o.frequencies = frequencies; }, "0.5 0.25 "},
       CHANGE(T, truncate, false)},
      four);
}

TEST(CppOptions, OfAppends) {
  using T = KvAppendOptions;
  const RopeOptions rope{.seqlen = 3};
  expect_every_field<T>(
      [](const T& options) {
        kv_append({}, options);
        return arrived;
      },
      {{"rope", [=](T& o) { o.rope = rope; }, show(shown(rope.to_c()))},
       CHANGE(T, norm_eps, 0.5),
       CHANGE(T, hadamard, true)});
  using U = KvAppendTensors;
  expect_every_field_of_to_c<U>(
      [](const headrace_kv_append_tensors& c) -> Shown {
        return {SHOW(k),
                SHOW(v),
                SHOW(k_pages),
                SHOW(v_pages),
                SHOW(q),
                SHOW(q_out),
                SHOW(slot_mapping),
                SHOW(positions),
                SHOW(cos),
                SHOW(sin),
                SHOW(q_norm_weight),
                SHOW(k_norm_weight),
                SHOW(quantised),
                SHOW(recent_slots),
                SHOW(channel_factors)};
      },
      {TENSOR(U, k), TENSOR(U, v), TENSOR(U, k_pages), TENSOR(U, v_pages), TENSOR(U, slot_mapping),
       TENSOR(U, q), TENSOR(U, q_out), TENSOR(U, positions), TENSOR(U, cos), TENSOR(U, sin),
       TENSOR(U, q_norm_weight), TENSOR(U, k_norm_weight),
       CHANGE(U, quantised, handle<const headrace_quantised_kv>()), TENSOR(U, recent_slots),
       TENSOR(U, channel_factors)});
}

TEST(CppOptions, OfMeasurements) {
  using T = CeilingOptions;
  expect_every_field<T>(
      [](const T& options) {
        measure_ceilings({}, options);
        return arrived;
      },
      {CHANGE(T, num_rounds, 3), CHANGE(T, round_seconds, 0.5)});
  using U = TuneOptions;
  const Plan plan(nullptr);
  Tuning tuning(cpu_info());
  int num_calls = 0;
  expect_every_field<U>(
      [&](const U& options) {
        tuning.tune(plan, {}, options);
        return arrived;
      },
      {CHANGE(U, num_rounds, 3),
       CHANGE(U, round_seconds, 0.5),
       {"ceilings",
        [](U& o) {
          o.ceilings = std::vector<Ceiling>(2, {.resource = {}, .operation = {}, .value = 5});
        },
        "5 5 "},
       {"before_call", [&](U& o) { o.before_call = [&](void*) { ++num_calls; }; }, "called"}});
  EXPECT_EQ(num_calls, 1);
}

}  // namespace
