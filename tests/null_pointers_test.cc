// Every pointer that an exported function needs, NULL while all others are valid: an error that
// names it, and nothing else happens.
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "headrace/engine.hpp"
#include "headrace/grammar.h"
#include "headrace/headrace.hpp"
#include "headrace/model.hpp"
#include "headrace/roofline.h"
#include "headrace/softmax.h"
#include "headrace/sparq.h"
#include "support/golden_texts.h"
#include "support/small_kv_cache.h"

namespace {

using headrace::testing::GoldenTexts;

const std::string kFile = HEADRACE_GOLDEN_DIR "/tiny/tiny_llama3_f16.gguf";

template <std::size_t kIndex, class... Params>
void refuse_null(GoldenTexts& texts, const std::string& name, headrace_status (*call)(Params...),
                 std::tuple<Params...> arguments) {
  if constexpr (std::is_pointer_v<std::tuple_element_t<kIndex, std::tuple<Params...>>>) {
    if (std::get<kIndex>(arguments) == nullptr) return;  // not needed
    std::get<kIndex>(arguments) = nullptr;
    EXPECT_EQ(std::apply(call, arguments), HEADRACE_INVALID_ARGUMENT) << name << ' ' << kIndex;
    texts.add(name + ' ' + std::to_string(kIndex) + ": " + headrace_last_error());
  }
}

// Pointers that the function does not need are NULL among the arguments.
template <class... Params>
void refuse_nulls(GoldenTexts& texts, const std::string& name, headrace_status (*call)(Params...),
                  std::type_identity_t<Params>... arguments) {
  const std::tuple<Params...> all(arguments...);
  [&]<std::size_t... kIndices>(std::index_sequence<kIndices...>) {
    (refuse_null<kIndices>(texts, name, call, all), ...);
  }
  (std::index_sequence_for<Params...>());
}
#define REFUSE_NULLS(call, ...) refuse_nulls(texts, #call, call, __VA_ARGS__)

// A struct of zeros with its size: the NULL is seen before its contents.
template <class T>
T sized() {
  T value{};
  value.struct_size = sizeof value;
  return value;
}

TEST(NullPointers, OfAttention) {
  GoldenTexts texts("capi.txt");
  const headrace::DeviceInfo cpu = headrace::cpu_info();
  headrace_device_info device = cpu;
  std::int32_t count = 0;
  REFUSE_NULLS(headrace_cpu_info, &device);
  REFUSE_NULLS(headrace_num_cuda_devices, &count);
  REFUSE_NULLS(headrace_cuda_info, 0, &device);
  REFUSE_NULLS(headrace_device_from_text, "cpu", &device);
  headrace_problem problem;
  headrace_problem_init(&problem);
  headrace_plan* plan = nullptr;
  REFUSE_NULLS(headrace_plan_attention, &problem, &device, &plan);
  REFUSE_NULLS(headrace_attention_supports, &problem, &device);
  EXPECT_EQ(plan, nullptr);

  float numbers[5][8] = {};
  auto tensors = sized<headrace_attention_tensors>();
  tensors.q = headrace::TensorView(numbers[0], headrace::DType::f32, {1, 1, 1, 1});
  tensors.k = tensors.v = tensors.q;
  tensors.out = headrace::TensorView(numbers[1], headrace::DType::f32, {1, 1, 1, 1});
  const auto gradients = sized<headrace_attention_gradients>();
  REFUSE_NULLS(headrace_attention_problem, &tensors, nullptr, &problem);
  REFUSE_NULLS(headrace_attention_forward, &tensors, nullptr, nullptr, 0, nullptr);
  ASSERT_EQ(headrace_attention_problem(&tensors, nullptr, &problem), HEADRACE_OK);
  ASSERT_EQ(headrace_plan_attention(&problem, &device, &plan), HEADRACE_OK);
  REFUSE_NULLS(headrace_plan_run, plan, &tensors, nullptr, nullptr, 0, nullptr);
  headrace_plan_destroy(plan);

  tensors.lse = headrace::TensorView(numbers[2], headrace::DType::f32, {1, 1, 1});
  auto valid = gradients;
  valid.dout = tensors.q;
  valid.dq = headrace::TensorView(numbers[3], headrace::DType::f32, {1, 1, 1, 1});
  valid.dk = headrace::TensorView(numbers[3] + 4, headrace::DType::f32, {1, 1, 1, 1});
  valid.dv = headrace::TensorView(numbers[4], headrace::DType::f32, {1, 1, 1, 1});
  REFUSE_NULLS(headrace_attention_backward_problem, &tensors, &valid, nullptr, &problem);
  REFUSE_NULLS(headrace_attention_backward, &tensors, &valid, nullptr, nullptr, 0, nullptr);
  ASSERT_EQ(headrace_attention_backward_problem(&tensors, &valid, nullptr, &problem), HEADRACE_OK);
  ASSERT_EQ(headrace_plan_attention(&problem, &device, &plan), HEADRACE_OK);
  REFUSE_NULLS(headrace_plan_run_backward, plan, &tensors, &valid, nullptr, nullptr, 0, nullptr);
  headrace_plan_destroy(plan);
}

TEST(NullPointers, OfOtherOperators) {
  GoldenTexts texts("capi.txt");
  const auto softmax = sized<headrace_softmax_tensors>();
  const auto softmax_backward = sized<headrace_softmax_backward_tensors>();
  const auto merge = sized<headrace_merge_states_tensors>();
  const auto append = sized<headrace_kv_append_tensors>();
  const auto sparq = sized<headrace_sparq_tensors>();
  const auto sparq_append = sized<headrace_sparq_append_tensors>();
  headrace_sparq_options options;
  headrace_sparq_options_init(&options);
  std::size_t bytes = 0;
  REFUSE_NULLS(headrace_softmax_forward, &softmax, nullptr, nullptr);
  REFUSE_NULLS(headrace_softmax_backward, &softmax_backward, nullptr, nullptr);
  REFUSE_NULLS(headrace_merge_states, &merge, nullptr);
  REFUSE_NULLS(headrace_kv_append, &append, nullptr, nullptr);
  REFUSE_NULLS(headrace_sparq_workspace_bytes, &sparq, &options, &bytes);
  REFUSE_NULLS(headrace_sparq_attention, &sparq, &options, nullptr, 0, nullptr);
  REFUSE_NULLS(headrace_sparq_append, &sparq_append, nullptr);
  headrace_rope_options rope;
  headrace_rope_options_init(&rope);
  rope.rot_dim = 4;
  double frequencies[2] = {};
  REFUSE_NULLS(headrace_rope_frequencies, &rope, frequencies, 2, nullptr);
}

TEST(NullPointers, OfKvCaches) {
  GoldenTexts texts("capi.txt");
  const headrace_kv_cache_options options = headrace::testing::kSmallKvCache.to_c();
  const headrace::KvCache owner(headrace::testing::kSmallKvCache);
  headrace_kv_cache *const cache = owner.get(), *made = nullptr;
  headrace_tensor pages{};
  auto quantised = sized<headrace_quantised_kv>();
  std::int64_t id = 0;
  const std::int32_t token = 1;
  const std::int64_t position = 0;
  auto info = sized<headrace_kv_sequence_info>();
  auto stats = sized<headrace_kv_cache_stats>();
  headrace_kv_batch batch;
  headrace_kv_batch_init(&batch);
  REFUSE_NULLS(headrace_kv_cache_create, &options, &made);
  REFUSE_NULLS(headrace_kv_cache_k_pages, cache, 0, &pages);
  REFUSE_NULLS(headrace_kv_cache_v_pages, cache, 0, &pages);
  REFUSE_NULLS(headrace_kv_cache_quantised, cache, 0, &quantised);
  REFUSE_NULLS(headrace_kv_cache_add, cache, &token, 1, 0, &id, nullptr);
  REFUSE_NULLS(headrace_kv_cache_fork, cache, 1, &id);
  REFUSE_NULLS(headrace_kv_cache_free, cache, 1);
  REFUSE_NULLS(headrace_kv_cache_reserve, cache, 1, 1, nullptr);
  REFUSE_NULLS(headrace_kv_cache_commit, cache, 1, &token, 1);
  REFUSE_NULLS(headrace_kv_cache_truncate, cache, 1, 0);
  REFUSE_NULLS(headrace_kv_cache_move, cache, 1, &position, 1, nullptr);
  REFUSE_NULLS(headrace_kv_cache_swap_out, cache, 1, nullptr);
  REFUSE_NULLS(headrace_kv_cache_swap_in, cache, 1, nullptr);
  REFUSE_NULLS(headrace_kv_cache_get_sequence_info, cache, 1, &info);
  REFUSE_NULLS(headrace_kv_cache_fill_batch, cache, &batch);
  REFUSE_NULLS(headrace_kv_cache_get_stats, cache, &stats);
  EXPECT_EQ(owner.stats().num_sequences, 0);
}

TEST(NullPointers, OfModelFiles) {
  GoldenTexts texts("capi.txt");
  headrace_model_file *file = nullptr, *made = nullptr;
  ASSERT_EQ(headrace_model_file_open(kFile.c_str(), &file), HEADRACE_OK);
  auto weight = sized<headrace_weight_info>();
  auto shape = sized<headrace_model_shape>();
  REFUSE_NULLS(headrace_model_file_open, kFile.c_str(), &made);
  REFUSE_NULLS(headrace_model_file_weight, file, 0, &weight);
  REFUSE_NULLS(headrace_model_shape_find, "llama-3.1-8b", &shape);
  ASSERT_EQ(headrace_model_shape_find("llama-3.1-8b", &shape), HEADRACE_OK);
  REFUSE_NULLS(headrace_model_file_describe, &shape, "BF16", &made);
  REFUSE_NULLS(headrace_random_model_write, &shape, "BF16", 0, nullptr, "/nowhere/model.gguf");
  headrace_model* model = nullptr;
  REFUSE_NULLS(headrace_random_model_load, &shape, "BF16", 0, nullptr, &model);
  REFUSE_NULLS(headrace_model_convert, kFile.c_str(), 1, "BF16", nullptr, "/nowhere/model.gguf");
  for (const char* headrace_model_shape::*text :
       {&headrace_model_shape::name, &headrace_model_shape::architecture}) {
    auto without = shape;
    without.*text = nullptr;
    EXPECT_EQ(headrace_model_file_describe(&without, "BF16", &made), HEADRACE_INVALID_ARGUMENT);
    texts.add(headrace_last_error());
  }
  const headrace_device_info device = headrace::cpu_info();
  auto step_shape = sized<headrace_step_shape>();
  headrace_step* step = nullptr;
  REFUSE_NULLS(headrace_step_explain, file, &step_shape, &device, &step);
  EXPECT_TRUE(made == nullptr && model == nullptr && step == nullptr);
  headrace_model_file_close(file);
}

TEST(NullPointers, OfModelsAndSessions) {
  GoldenTexts texts("capi.txt");
  const headrace::Model owner(kFile);
  headrace::Session session_owner(owner);
  const headrace_model* const model = owner.get();
  headrace_session *const session = session_owner.get(), *made = nullptr;
  headrace_model* loaded = nullptr;
  auto info = sized<headrace_model_info>();
  std::size_t count = 0;
  std::int32_t tokens[64] = {1};
  char text[64] = "a";
  const headrace_message message = {"user", "hello"};
  headrace_token_logprob token{}, top[1] = {};
  auto generation = sized<headrace_generation>();
  auto completion = sized<headrace_completion>();
  headrace_completions* completions = nullptr;
  REFUSE_NULLS(headrace_model_load, kFile.c_str(), nullptr, &loaded);
  REFUSE_NULLS(headrace_model_get_info, model, &info);
  REFUSE_NULLS(headrace_tokenize, model, "a", 1, 0, tokens, 64, &count);
  REFUSE_NULLS(headrace_detokenize, model, tokens, 1, text, 64, &count);
  REFUSE_NULLS(headrace_token_text, model, 0, text, 64, &count);
  REFUSE_NULLS(headrace_chat_tokens, model, nullptr, &message, 1, 1, tokens, 64, &count);
  REFUSE_NULLS(headrace_session_create, model, nullptr, &made);
  REFUSE_NULLS(headrace_session_append, session, tokens, 1, nullptr);
  REFUSE_NULLS(headrace_session_truncate, session, 0);
  headrace_step* step = nullptr;
  REFUSE_NULLS(headrace_session_time_step, session, 1, 1, &step);
  EXPECT_EQ(step, nullptr);
  REFUSE_NULLS(headrace_session_sample, session, nullptr, 0, &token, top, 1);
  REFUSE_NULLS(headrace_session_generate, session, nullptr, &generation);
  REFUSE_NULLS(headrace_session_generate_n, session, nullptr, 1, nullptr, nullptr, &completions);
  REFUSE_NULLS(headrace_session_beam_search, session, nullptr, &completions);
  EXPECT_TRUE(made == nullptr && loaded == nullptr && completions == nullptr);
  session_owner.append(std::vector<std::int32_t>{89});
  headrace_generation_options short_one;
  headrace_generation_options_init(&short_one);
  short_one.max_new_tokens = 1;
  ASSERT_EQ(headrace_session_generate_n(session, &short_one, 1, nullptr, nullptr, &completions),
            HEADRACE_OK);
  REFUSE_NULLS(headrace_completions_get, completions, 0, &completion);
  headrace_completions_destroy(completions);
  headrace_grammar* grammar = nullptr;
  REFUSE_NULLS(headrace_grammar_create_regex, model, "a", 1, &grammar);
  REFUSE_NULLS(headrace_grammar_create_gbnf, model, "a", 1, &grammar);
  REFUSE_NULLS(headrace_grammar_create_json_schema, model, "a", 1, &grammar);
  EXPECT_EQ(grammar, nullptr);
}

TEST(NullPointers, OfEngines) {
  GoldenTexts texts("capi.txt");
  const headrace::Model model(kFile);
  headrace::Engine owner(model);
  headrace_engine *const engine = owner.get(), *made = nullptr;
  headrace_request request;
  headrace_request_init(&request);
  const std::int32_t prompt = 1;
  request.tokens = &prompt;
  request.num_tokens = 1;
  std::int64_t id = 0;
  headrace_output* output = nullptr;
  auto info = sized<headrace_output_info>();
  auto stats = sized<headrace_engine_stats>();
  REFUSE_NULLS(headrace_engine_create, model.get(), nullptr, &made);
  REFUSE_NULLS(headrace_engine_add, engine, &request, &id);
  REFUSE_NULLS(headrace_engine_abort, engine, 1);
  REFUSE_NULLS(headrace_engine_step, engine, nullptr);
  REFUSE_NULLS(headrace_engine_run, engine);
  REFUSE_NULLS(headrace_engine_poll, engine, &output);
  REFUSE_NULLS(headrace_engine_get_stats, engine, &stats);
  ASSERT_EQ(headrace_engine_add(engine, &request, &id), HEADRACE_OK);
  ASSERT_EQ(headrace_engine_step(engine, nullptr), HEADRACE_OK);
  ASSERT_EQ(headrace_engine_poll(engine, &output), HEADRACE_OK);
  REFUSE_NULLS(headrace_output_get, output, &info);
  headrace_output_destroy(output);
}

TEST(NullPointers, OfCeilingsAndPredictions) {
  GoldenTexts texts("capi.txt");
  headrace_device_info device = headrace::cpu_info();
  headrace_ceilings* ceilings = nullptr;
  REFUSE_NULLS(headrace_ceilings_measure, &device, nullptr, &ceilings);
  EXPECT_EQ(ceilings, nullptr);
  headrace_problem problem;
  headrace_problem_init(&problem);
  headrace_plan* plan = nullptr;
  ASSERT_EQ(headrace_plan_attention(&problem, &device, &plan), HEADRACE_OK);
  headrace_prediction *prediction = nullptr, *made = nullptr;
  auto info = sized<headrace_prediction_info>();
  auto part = sized<headrace_prediction_part>();
  ASSERT_EQ(headrace_plan_predict(plan, nullptr, 0, &prediction), HEADRACE_OK);
  const auto ceiling = sized<headrace_ceiling>();
  REFUSE_NULLS(headrace_plan_predict, plan, &ceiling, 1, &made);
  REFUSE_NULLS(headrace_prediction_get, prediction, &info);
  REFUSE_NULLS(headrace_prediction_get_part, prediction, 0, &part);
  EXPECT_EQ(made, nullptr);
  headrace_prediction_destroy(prediction);
  headrace_plan_destroy(plan);
}

}  // namespace
