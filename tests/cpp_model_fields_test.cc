// The structs of the C++ wrappers of models and engines: each of their fields reaches the C struct.
// Functions of the library that are defined here take the place of those that are linked: they keep
// what they were given and do nothing.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "headrace/engine.hpp"
#include "headrace/step.hpp"
#include "support/fields.h"

namespace {

using namespace headrace;
using namespace headrace::testing;

Shown arrived;

Shown shown(const headrace_sampling_options& c) {
  std::string bias;
  for (std::size_t i = 0; i < c.num_logit_bias; ++i)
    bias += show(c.logit_bias[i].token) + ':' + show(c.logit_bias[i].bias) + ' ';
  return {SHOW(temperature),
          SHOW(top_p),
          SHOW(min_p),
          SHOW(repetition_penalty),
          SHOW(presence_penalty),
          SHOW(frequency_penalty),
          SHOW(top_k),
          SHOW(repetition_window),
          SHOW(seed),
          SHOW(sequence),
          {"logit_bias", bias},
          SHOW(order)};
}

Shown shown(const headrace_model_options& c) {
  std::string progress;
  if (c.progress != nullptr) {
    c.progress(c.progress_user, 3, 4);
    progress = "called";
  }
  return {SHOW(num_threads), SHOW(exact),     SHOW(use_mmap), SHOW(vocab_only),
          SHOW(device_type), SHOW(device_id), SHOW(fast),     {"progress", progress}};
}

Shown shown(const headrace_generation_options& c) {
  return {{"sampling", show(shown(*c.sampling))},
          SHOW(max_new_tokens),
          {"stop", show(c.stop, c.num_stop)},
          SHOW(ignore_end),
          SHOW(grammar)};
}

}  // namespace

extern "C" {

headrace_status headrace_model_load(const char*, const headrace_model_options* options,
                                    headrace_model** model) {
  arrived = shown(*options);
  *model = nullptr;
  return HEADRACE_OK;
}

headrace_status headrace_random_model_load(const headrace_model_shape* shape,
                                           const char* weight_type, uint64_t seed,
                                           const headrace_model_options* options,
                                           headrace_model** model) {
  arrived = {{"shape", show(shape->num_layers)},
             {"weight_type", weight_type},
             {"seed", show(seed)},
             {"options", show(shown(*options))}};
  *model = nullptr;
  return HEADRACE_OK;
}

headrace_status headrace_random_model_write(const headrace_model_shape* shape,
                                            const char* weight_type, uint64_t seed,
                                            const headrace_model_options* options,
                                            const char* path) {
  headrace_model* model = nullptr;
  headrace_random_model_load(shape, weight_type, seed, options, &model);
  arrived["path"] = path;
  return HEADRACE_OK;
}

headrace_status headrace_grammar_create_regex(const headrace_model*, const char*, size_t,
                                              headrace_grammar** grammar) {
  *grammar = handle<headrace_grammar>();
  return HEADRACE_OK;
}
void headrace_grammar_destroy(headrace_grammar*) {}

headrace_status headrace_model_convert(const char* input, int64_t num_kv_heads,
                                       const char* weight_type,
                                       const headrace_model_options* options, const char* output) {
  arrived = {{"input", input},
             {"num_kv_heads", show(num_kv_heads)},
             {"weight_type", weight_type},
             {"options", show(shown(*options))},
             {"output", output}};
  return HEADRACE_OK;
}

headrace_status headrace_engine_create(const headrace_model*, const headrace_engine_options* given,
                                       headrace_engine** engine) {
  const headrace_engine_options& c = *given;
  arrived = {SHOW(max_tokens),     SHOW(max_batch_tokens), SHOW(max_num_seqs),
             SHOW(max_requests),   SHOW(page_size),        SHOW(num_pages),
             SHOW(num_host_pages), SHOW(cache_dtype),      SHOW(k_dtype),
             SHOW(v_dtype),        SHOW(no_prefix_cache),  SHOW(max_prompt_tokens)};
  *engine = nullptr;
  return HEADRACE_OK;
}

headrace_status headrace_engine_add(headrace_engine*, const headrace_request* given, int64_t* id) {
  const headrace_request& c = *given;
  arrived = {{"prompt", show(c.tokens, c.num_tokens)},
             {"sampling", show(shown(*c.sampling))},
             SHOW(n),
             SHOW(max_new_tokens),
             {"stop_tokens", show(c.stop_tokens, c.num_stop_tokens)},
             {"stop", show(c.stop, c.num_stop)},
             SHOW(priority),
             SHOW(num_logprobs),
             SHOW(ignore_end),
             SHOW(grammar),
             SHOW(cache_salt),
             SHOW(beam_width),
             SHOW(length_penalty)};
  *id = 0;
  return HEADRACE_OK;
}

headrace_status headrace_session_create(const headrace_model*,
                                        const headrace_session_options* given,
                                        headrace_session** session) {
  const headrace_session_options& c = *given;
  arrived = {SHOW(max_tokens), SHOW(batch_tokens), SHOW(cache_dtype),
             SHOW(page_size),  SHOW(num_pages),    SHOW(k_dtype),
             SHOW(v_dtype),    SHOW(sparq_keys),   SHOW(sparq_components)};
  *session = nullptr;
  return HEADRACE_OK;
}

headrace_status headrace_session_beam_search(headrace_session*, const headrace_beam_options* given,
                                             headrace_completions** completions) {
  const headrace_beam_options& c = *given;
  arrived = {SHOW(beam_width), SHOW(length_penalty), SHOW(max_new_tokens), SHOW(ignore_end)};
  *completions = nullptr;
  return HEADRACE_OK;
}

headrace_status headrace_session_generate(headrace_session*,
                                          const headrace_generation_options* options,
                                          headrace_generation*) {
  arrived = shown(*options);
  return HEADRACE_OK;
}

headrace_status headrace_session_generate_n(headrace_session*,
                                            const headrace_generation_options* options, int64_t n,
                                            headrace_sample_text_fn, void*,
                                            headrace_completions** completions) {
  arrived = shown(*options);
  arrived["n"] = show(n);
  *completions = nullptr;
  return HEADRACE_OK;
}

headrace_status headrace_step_explain(const headrace_model_file*, const headrace_step_shape* given,
                                      const headrace_device_info*, headrace_step** step) {
  const headrace_step_shape& c = *given;
  arrived = {SHOW(num_seqs),    SHOW(seqlen_q), SHOW(seqlen_k),
             SHOW(cache_dtype), SHOW(k_dtype),  SHOW(v_dtype)};
  *step = nullptr;
  return HEADRACE_OK;
}
headrace_status headrace_session_time_step(headrace_session*, int64_t num_tokens,
                                           int64_t num_rounds, headrace_step** step) {
  arrived = {{"num_tokens", show(num_tokens)}, {"num_rounds", show(num_rounds)}};
  *step = nullptr;
  return HEADRACE_OK;
}

}  // extern "C"

namespace {

const Model& no_model() {
  static const Model model("none");
  return model;
}

TEST(CppOptions, OfModels) {
  using T = ModelOptions;
  int num_calls = 0;
  const std::vector<Change<T>> changes = {CHANGE(T, num_threads, 3),
                                          CHANGE(T, exact, true),
                                          CHANGE(T, use_mmap, true),
                                          CHANGE(T, vocab_only, true),
                                          {"progress",
                                           [&](T& o) {
                                             o.progress = [&](std::uint64_t done,
                                                              std::uint64_t total) {
                                               num_calls += done == 3 && total == 4;
                                             };
                                           },
                                           "called"},
                                          CHANGE(T, device_type, HEADRACE_CUDA),
                                          CHANGE(T, device_id, 5),
                                          CHANGE(T, fast, true)};
  expect_every_field<T>(
      [](const T& options) {
        const Model model("none", options);
        return arrived;
      },
      changes);
  EXPECT_EQ(num_calls, 1);
}

TEST(CppOptions, OfRandomAndConvertedModels) {
  using T = RandomModel;
  headrace_model_shape shape{};
  shape.num_layers = 3;
  const ModelOptions options{.num_threads = 7};
  const std::vector<Change<T>> changes = {{"shape", [=](T& o) { o.shape = shape; }, "3"},
                                          CHANGE(T, weight_type, std::string("Q8_0")),
                                          CHANGE(T, seed, 5u)};
  expect_every_field<T>(
      [&](const T& random) {
        const Model model(random, options);
        return arrived;
      },
      changes, T{.shape = {}});
  const std::string given = show(shown(options.to_c()));
  EXPECT_EQ(arrived.at("options"), given);
  expect_every_field<T>(
      [&](const T& random) {
        random.write("a path", options);
        return arrived;
      },
      changes, T{.shape = {}});
  EXPECT_EQ(arrived.at("options"), given);
  EXPECT_EQ(arrived.at("path"), "a path");
  convert_model("in", "out", 2, "Q4_1", options);
  EXPECT_EQ(arrived, (Shown{{"input", "in"},
                            {"output", "out"},
                            {"num_kv_heads", "2"},
                            {"weight_type", "Q4_1"},
                            {"options", given}}));
}

TEST(CppOptions, OfSessions) {
  using T = SessionOptions;
  expect_every_field<T>(
      [](const T& options) {
        const Session session(no_model(), options);
        return arrived;
      },
      {CHANGE(T, max_tokens, 2), CHANGE(T, batch_tokens, 3), CHANGE(T, cache_dtype, DType::bf16),
       CHANGE(T, page_size, 4), CHANGE(T, num_pages, 5), CHANGE(T, k_dtype, DType::i8),
       CHANGE(T, v_dtype, DType::u4x2), CHANGE(T, sparq_components, 6), CHANGE(T, sparq_keys, 7)});
}

TEST(CppOptions, OfSampling) {
  using T = SamplingOptions;
  expect_every_field_of_to_c<T>(shown, {CHANGE(T, temperature, 0.5),
                                        CHANGE(T, top_p, 0.25),
                                        CHANGE(T, min_p, 0.125),
                                        CHANGE(T, top_k, 2),
                                        CHANGE(T, repetition_penalty, 3.0),
                                        CHANGE(T, presence_penalty, 4.0),
                                        CHANGE(T, frequency_penalty, 5.0),
                                        CHANGE(T, repetition_window, 6),
                                        CHANGE(T, seed, 7u),
                                        CHANGE(T, sequence, 8u),
                                        {"logit_bias",
                                         [](T& o) {
                                           o.logit_bias = {{3, 0.5f}, {4, 2.0f}};
                                         },
                                         "3:0.5 4:2 "},
                                        CHANGE(T, order, HEADRACE_ORDER_LLAMA_CPP)});
}

TEST(CppOptions, OfGenerations) {
  using T = GenerationOptions;
  const SamplingOptions sampling{.top_k = 3};
  const Grammar grammar = Grammar::regex(no_model(), "a");
  const std::vector<Change<T>> changes = {
      {"sampling", [=](T& o) { o.sampling = sampling; }, show(shown(sampling.to_c()))},
      CHANGE(T, max_new_tokens, 3),
      {"stop",
       [](T& o) {
         o.stop = {"one", "two"};
       },
       "one two "},
      CHANGE(T, ignore_end, true),
      {"grammar", [=](T& o) { o.grammar = grammar; }, show(grammar.get())}};
  Session session(no_model());
  expect_every_field<T>(
      [&](const T& options) {
        session.generate(options, [](std::string_view) { return true; });
        return arrived;
      },
      changes);
  expect_every_field<T>(
      [&](const T& options) {
        session.generate_n(options, 5);
        return arrived;
      },
      changes);
  EXPECT_EQ(arrived.at("n"), "5");
}

TEST(CppOptions, OfBeams) {
  using T = BeamOptions;
  Session session(no_model());
  expect_every_field<T>(
      [&](const T& options) {
        session.beam_search(options);
        return arrived;
      },
      {CHANGE(T, beam_width, 2), CHANGE(T, length_penalty, 0.5), CHANGE(T, max_new_tokens, 3),
       CHANGE(T, ignore_end, true)});
}

TEST(CppOptions, OfEngines) {
  using T = EngineOptions;
  expect_every_field<T>(
      [](const T& options) {
        const Engine engine(no_model(), options);
        return arrived;
      },
      {CHANGE(T, max_tokens, 2),
       CHANGE(T, max_batch_tokens, 3),
       CHANGE(T, max_num_seqs, 4),
       CHANGE(T, max_requests, 5),
       CHANGE(T, page_size, 6),
       CHANGE(T, num_pages, 7),
       CHANGE(T, num_host_pages, 8),
       CHANGE(T, max_prompt_tokens, 9),
       CHANGE(T, cache_dtype, DType::bf16),
       {"no_prefix_cache", [](T& o) { o.has_prefix_cache = false; }, "1"},
       CHANGE(T, k_dtype, DType::i8),
       CHANGE(T, v_dtype, DType::u4x2)});
}

TEST(CppOptions, OfRequests) {
  using T = Request;
  const SamplingOptions sampling{.top_k = 3};
  const Grammar grammar = Grammar::regex(no_model(), "a");
  Engine engine(no_model());
  expect_every_field<T>(
      [&](const T& request) {
        engine.add(request);
        return arrived;
      },
      {{"prompt",
        [](T& o) {
          o.prompt = {7, 9};
        },
        "7 9 "},
       {"sampling", [=](T& o) { o.sampling = sampling; }, show(shown(sampling.to_c()))},
       CHANGE(T, n, 2),
       CHANGE(T, max_new_tokens, 3),
       {"stop_tokens",
        [](T& o) {
          o.stop_tokens = {4, 5};
        },
        "4 5 "},
       {"stop",
        [](T& o) {
          o.stop = {"one", "two"};
        },
        "one two "},
       CHANGE(T, priority, 6),
       CHANGE(T, num_logprobs, 7),
       CHANGE(T, ignore_end, true),
       {"grammar", [=](T& o) { o.grammar = grammar; }, show(grammar.get())},
       CHANGE(T, cache_salt, 8),
       CHANGE(T, beam_width, 9),
       CHANGE(T, length_penalty, 0.5)});
}

TEST(CppOptions, OfTimedSteps) {
  Session session(no_model());
  time_step(session, 3, 4);
  EXPECT_EQ(arrived, (Shown{{"num_tokens", "3"}, {"num_rounds", "4"}}));
}

TEST(CppOptions, OfSteps) {
  using T = StepShape;
  const ModelFile file(find_model_shape(model_shape_names().front()), "BF16");
  expect_every_field<T>(
      [&](const T& shape) {
        explain_step(file, shape, {});
        return arrived;
      },
      {CHANGE(T, num_seqs, 2), CHANGE(T, seqlen_q, 3), CHANGE(T, seqlen_k, 4),
       CHANGE(T, cache_dtype, DType::bf16), CHANGE(T, k_dtype, DType::i8),
       CHANGE(T, v_dtype, DType::u4x2)});
}

}  // namespace
