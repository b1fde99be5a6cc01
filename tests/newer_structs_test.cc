// Structs of programs compiled with a newer header: fields that the library does not know are
// accepted as zeros and refused with any bit set, instead of being ignored. Tests every struct that
// the library reads and every byte.
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <string>

#include "headrace/engine.h"
#include "headrace/kv_cache.hpp"
#include "headrace/merge_states.h"
#include "headrace/model.hpp"
#include "headrace/roofline.h"
#include "headrace/tuning.h"

namespace {

using namespace headrace;

const std::string kFile = std::string(HEADRACE_GOLDEN_DIR) + "/tiny/tiny_llama3_f16.gguf";

// call: passes the struct to the library, which may refuse its other fields.
template <class T>
void expect_checked(const std::string& name, const std::function<headrace_status(const T*)>& call) {
  struct Newer {
    T known{};
    unsigned char more[16] = {};
  } newer;
  static_assert(sizeof newer == sizeof(T) + sizeof newer.more);
  newer.known.struct_size = sizeof newer;
  // Zeros are accepted; the known fields may still be refused.
  if (call(&newer.known) != HEADRACE_OK) {
    const std::string error = headrace_last_error();
    EXPECT_EQ(error.find("struct_size"), std::string::npos) << name << ": " << error;
    EXPECT_EQ(error.find(" is set"), std::string::npos) << name << ": " << error;
  }
  for (std::size_t i = 0; i < sizeof newer.more; ++i) {
    for (const unsigned char bits : {0x01, 0x80}) {
      newer.more[i] = bits;
      EXPECT_EQ(call(&newer.known), HEADRACE_UNSUPPORTED) << name << ", byte " << i;
      const std::string text = name + ": byte " + std::to_string(sizeof(T) + i) + " is set";
      EXPECT_EQ(std::string(headrace_last_error()).find(text), 0u) << headrace_last_error();
    }
    newer.more[i] = 0;
  }
}

TEST(NewerStructs, OfAttention) {
  headrace_attention_tensors tensors;
  headrace_attention_tensors_init(&tensors);
  headrace_problem problem;
  headrace_problem_init(&problem);
  const DeviceInfo device = cpu_info();
  const Plan plan = plan_attention(problem, device);
  expect_checked<headrace_attention_tensors>("tensors", [](const auto* t) {
    return headrace_attention_forward(t, nullptr, nullptr, 0, nullptr);
  });
  expect_checked<headrace_attention_gradients>("gradients", [&](const auto* g) {
    return headrace_attention_backward(&tensors, g, nullptr, nullptr, 0, nullptr);
  });
  expect_checked<headrace_attention_options>("options", [&](const auto* o) {
    return headrace_attention_forward(&tensors, o, nullptr, 0, nullptr);
  });
  expect_checked<headrace_run_options>("options", [&](const auto* o) {
    return headrace_plan_run(plan.get(), &tensors, o, nullptr, 0, nullptr);
  });
  expect_checked<headrace_problem>(
      "problem", [&](const auto* p) { return headrace_attention_supports(p, &device); });
  expect_checked<headrace_device_info>(
      "device", [&](const auto* d) { return headrace_attention_supports(&problem, d); });
}

TEST(NewerStructs, OfSoftmax) {
  headrace_softmax_tensors tensors;
  headrace_softmax_tensors_init(&tensors);
  expect_checked<headrace_softmax_tensors>(
      "tensors", [](const auto* t) { return headrace_softmax_forward(t, nullptr, nullptr); });
  expect_checked<headrace_softmax_backward_tensors>(
      "tensors", [](const auto* t) { return headrace_softmax_backward(t, nullptr, nullptr); });
  expect_checked<headrace_softmax_options>(
      "options", [&](const auto* o) { return headrace_softmax_forward(&tensors, o, nullptr); });
}

TEST(NewerStructs, OfModels) {
  expect_checked<headrace_model_options>("options", [](const auto* o) {
    headrace_model* model = nullptr;
    const headrace_status status = headrace_model_load(kFile.c_str(), o, &model);
    headrace_model_destroy(model);
    return status;
  });
  const Model model(kFile);
  expect_checked<headrace_session_options>("options", [&](const auto* o) {
    headrace_session* session = nullptr;
    const headrace_status status = headrace_session_create(model.get(), o, &session);
    headrace_session_destroy(session);
    return status;
  });
  const Session session(model);  // without tokens: nothing is sampled
  headrace_token_logprob token{};
  expect_checked<headrace_sampling_options>("sampling", [&](const auto* o) {
    return headrace_session_sample(session.get(), o, 0, &token, nullptr, 0);
  });
  headrace_generation result{};
  result.struct_size = sizeof result;
  expect_checked<headrace_generation_options>("options", [&](const auto* o) {
    return headrace_session_generate(session.get(), o, &result);
  });
  headrace_completions* completions = nullptr;
  expect_checked<headrace_beam_options>("options", [&](const auto* o) {
    return headrace_session_beam_search(session.get(), o, &completions);
  });
}

TEST(NewerStructs, OfTheKvCache) {
  expect_checked<headrace_kv_cache_options>("options", [](const auto* o) {
    headrace_kv_cache* cache = nullptr;
    return headrace_kv_cache_create(o, &cache);
  });
  const KvCache cache({.num_layers = 1, .num_kv_heads = 1, .head_dim = 8, .num_pages = 1});
  expect_checked<headrace_kv_batch>(
      "batch", [&](const auto* b) { return headrace_kv_cache_fill_batch(cache.get(), b); });
  expect_checked<headrace_rope_options>(
      "options", [](const auto* o) { return headrace_rope_frequencies(o, nullptr, 0, nullptr); });
  headrace_kv_append_tensors tensors;
  headrace_kv_append_tensors_init(&tensors);
  expect_checked<headrace_kv_append_tensors>(
      "tensors", [](const auto* t) { return headrace_kv_append(t, nullptr, nullptr); });
  expect_checked<headrace_kv_append_options>(
      "options", [&](const auto* o) { return headrace_kv_append(&tensors, o, nullptr); });
}

TEST(NewerStructs, OfMergeStates) {
  expect_checked<headrace_merge_states_tensors>(
      "tensors", [](const auto* t) { return headrace_merge_states(t, nullptr); });
}

TEST(NewerStructs, OfSparq) {
  headrace_sparq_tensors tensors;
  headrace_sparq_options options;
  headrace_sparq_tensors_init(&tensors);
  headrace_sparq_options_init(&options);
  expect_checked<headrace_sparq_tensors>("tensors", [&](const auto* t) {
    return headrace_sparq_attention(t, &options, nullptr, 0, nullptr);
  });
  expect_checked<headrace_sparq_options>("options", [&](const auto* o) {
    return headrace_sparq_attention(&tensors, o, nullptr, 0, nullptr);
  });
  expect_checked<headrace_sparq_append_tensors>(
      "tensors", [](const auto* t) { return headrace_sparq_append(t, nullptr); });
}

TEST(NewerStructs, OfCeilings) {
  const DeviceInfo device = cpu_info();
  headrace_ceilings* ceilings = nullptr;
  expect_checked<headrace_ceiling_options>(
      "options", [&](const auto* o) { return headrace_ceilings_measure(&device, o, &ceilings); });
}

TEST(NewerStructs, OfTuning) {
  float x = 1, out = 0;
  const auto view = [](float& of) { return TensorView(&of, DType::f32, {1, 1, 1, 1}); };
  const AttentionTensors tensors{.q = view(x), .k = view(x), .v = view(x), .out = view(out)};
  const headrace_attention_tensors c_tensors = tensors.to_c();
  const Plan plan = plan_attention(Problem(tensors), cpu_info());
  const DeviceInfo device = cpu_info();
  headrace_tuning* tuning = nullptr;
  ASSERT_EQ(headrace_tuning_create(&device, &tuning), HEADRACE_OK);
  expect_checked<headrace_tune_options>("tune_options", [&](const auto* o) {
    return headrace_plan_tune(plan.get(), &c_tensors, nullptr, nullptr, o, nullptr, tuning,
                              nullptr);
  });
  headrace_tuning_destroy(tuning);
}

TEST(NewerStructs, OfAnEngine) {
  const Model model(kFile);
  expect_checked<headrace_engine_options>("options", [&](const auto* o) {
    headrace_engine* engine = nullptr;
    const headrace_status status = headrace_engine_create(model.get(), o, &engine);
    headrace_engine_destroy(engine);
    return status;
  });
  headrace_engine* engine = nullptr;
  ASSERT_EQ(headrace_engine_create(model.get(), nullptr, &engine), HEADRACE_OK);
  std::int64_t id = 0;
  expect_checked<headrace_request>(
      "request", [&](const auto* r) { return headrace_engine_add(engine, r, &id); });
  headrace_engine_destroy(engine);
}

TEST(NewerStructs, OfShapes) {
  headrace_model_file* file = nullptr;
  expect_checked<headrace_model_shape>(
      "shape", [&](const auto* s) { return headrace_model_file_describe(s, "BF16", &file); });
  ASSERT_EQ(headrace_model_file_open(kFile.c_str(), &file), HEADRACE_OK);
  const DeviceInfo device = cpu_info();
  expect_checked<headrace_step_shape>("shape", [&](const auto* s) {
    headrace_step* step = nullptr;
    const headrace_status status = headrace_step_explain(file, s, &device, &step);
    headrace_step_destroy(step);
    return status;
  });
  headrace_model_file_close(file);
}

}  // namespace
