// Output structs belong to programs that may be older or newer than the library: it writes exactly
// the caller's bytes, refuses sizes it cannot fill, and touches nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "headrace/engine.hpp"
#include "headrace/headrace.hpp"
#include "headrace/kv_cache.hpp"
#include "headrace/model.h"
#include "headrace/roofline.h"
#include "headrace/tuning.hpp"

namespace {

constexpr std::size_t kGuardBytes = 64;
constexpr unsigned char kGuard = 0xA5;

// A caller's struct and the memory after it.
template <class T>
struct Guarded {
  alignas(T) std::array<unsigned char, sizeof(T) + kGuardBytes> bytes;

  Guarded() { bytes.fill(kGuard); }
  T* get() { return reinterpret_cast<T*>(bytes.data()); }
  bool is_untouched_from(std::size_t first) const {
    return std::all_of(bytes.begin() + static_cast<std::ptrdiff_t>(first), bytes.end(),
                       [](unsigned char byte) { return byte == kGuard; });
  }
};

// fill(T*, struct_size) calls one function of the library that writes a T.
template <class T, class Fill>
void expect_keeps_to_the_size(const char* what, const char* name, Fill fill) {
  SCOPED_TRACE(what);
  Guarded<T> whole;
  ASSERT_EQ(fill(whole.get(), sizeof(T)), HEADRACE_OK) << headrace_last_error();
  EXPECT_TRUE(whole.is_untouched_from(sizeof(T)));
  for (std::size_t size = sizeof(std::size_t); size <= sizeof(T); size += 8) {
    Guarded<T> older;
    ASSERT_EQ(fill(older.get(), size), HEADRACE_OK) << headrace_last_error();
    EXPECT_EQ(older.get()->struct_size, size);
    EXPECT_EQ(std::memcmp(older.bytes.data() + 8, whole.bytes.data() + 8, size - 8), 0) << size;
    EXPECT_TRUE(older.is_untouched_from(size)) << size;
  }
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{4}, std::size_t{12}, sizeof(T) + 8, std::size_t{SIZE_MAX}}) {
    Guarded<T> wrong;
    EXPECT_EQ(fill(wrong.get(), size), HEADRACE_INVALID_ARGUMENT) << size;
    const std::string text = headrace_last_error();
    EXPECT_EQ(text.find(std::string(name) + ".struct_size=" + std::to_string(size) + ": "), 0u)
        << text;
    EXPECT_NE(text.find("at most " + std::to_string(sizeof(T)) + " bytes"), std::string::npos)
        << text;
    EXPECT_NE(text.find("load a library as new as the header"), std::string::npos) << text;
    EXPECT_TRUE(wrong.is_untouched_from(sizeof(std::size_t))) << size;
  }
  EXPECT_EQ(fill(nullptr, sizeof(T)), HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(headrace_last_error()),
            std::string(name) + "=NULL: must not be null; pass a struct to fill");
}

#define HEADRACE_EXPECT_INIT(type, name) \
  expect_keeps_to_the_size<headrace_##type>(#type, name, headrace_##type##_init_sized)

TEST(StructSizes, OfInitFunctions) {
  HEADRACE_EXPECT_INIT(attention_options, "options");
  HEADRACE_EXPECT_INIT(attention_tensors, "tensors");
  HEADRACE_EXPECT_INIT(attention_gradients, "gradients");
  HEADRACE_EXPECT_INIT(problem, "problem");
  HEADRACE_EXPECT_INIT(softmax_options, "options");
  HEADRACE_EXPECT_INIT(softmax_tensors, "tensors");
  HEADRACE_EXPECT_INIT(softmax_backward_tensors, "tensors");
  HEADRACE_EXPECT_INIT(model_options, "options");
  HEADRACE_EXPECT_INIT(session_options, "options");
  HEADRACE_EXPECT_INIT(sampling_options, "options");
  HEADRACE_EXPECT_INIT(generation_options, "options");
  HEADRACE_EXPECT_INIT(beam_options, "options");
  HEADRACE_EXPECT_INIT(engine_options, "options");
  HEADRACE_EXPECT_INIT(request, "request");
  HEADRACE_EXPECT_INIT(kv_cache_options, "options");
  HEADRACE_EXPECT_INIT(kv_batch, "batch");
  HEADRACE_EXPECT_INIT(rope_options, "options");
  HEADRACE_EXPECT_INIT(kv_append_options, "options");
  HEADRACE_EXPECT_INIT(kv_append_tensors, "tensors");
  HEADRACE_EXPECT_INIT(merge_states_tensors, "tensors");
  HEADRACE_EXPECT_INIT(sparq_options, "options");
  HEADRACE_EXPECT_INIT(sparq_tensors, "tensors");
  HEADRACE_EXPECT_INIT(sparq_append_tensors, "tensors");
  HEADRACE_EXPECT_INIT(ceiling_options, "options");
  HEADRACE_EXPECT_INIT(tune_options, "options");
}

// The same for functions that read the size from the struct.
template <class T, class Function>
void expect_reads_the_size(const char* what, const char* name, Function function) {
  expect_keeps_to_the_size<T>(what, name, [&](T* to, std::size_t size) {
    if (to != nullptr) to->struct_size = size;
    return function(to);
  });
}

TEST(StructSizes, OfDevicesAndProblems) {
  expect_reads_the_size<headrace_device_info>("cpu_info", "device", headrace_cpu_info);
  expect_reads_the_size<headrace_device_info>(
      "device_from_text", "device", [](auto* to) { return headrace_device_from_text("cpu", to); });
  std::vector<float> data(2 * 8);
  const headrace::TensorView view(data.data(), headrace::DType::f32, {1, 2, 1, 8});
  const headrace::TensorView lse(data.data(), headrace::DType::f32, {1, 1, 2});
  const auto tensors =
      headrace::AttentionTensors{.q = view, .k = view, .v = view, .out = view, .lse = lse}.to_c();
  std::vector<float> out(data.size()), dq(data.size()), dk(data.size()), dv(data.size());
  const auto view_of = [](std::vector<float>& x) {
    return headrace::TensorView(x.data(), headrace::DType::f32, {1, 2, 1, 8});
  };
  auto forward = tensors;
  forward.out = view_of(out);
  forward.lse = {};
  expect_reads_the_size<headrace_problem>("problem", "problem", [&](auto* to) {
    return headrace_attention_problem(&forward, nullptr, to);
  });
  const auto gradients =
      headrace::AttentionGradients{
          .dout = view, .dq = view_of(dq), .dk = view_of(dk), .dv = view_of(dv)}
          .to_c();
  expect_reads_the_size<headrace_problem>("backward_problem", "problem", [&](auto* to) {
    return headrace_attention_backward_problem(&tensors, &gradients, nullptr, to);
  });
}

TEST(StructSizes, OfModelShapes) {
  expect_reads_the_size<headrace_model_shape>(
      "shape", "shape", [](auto* to) { return headrace_model_shape_find("llama-3.1-8b", to); });
}

TEST(StructSizes, OfCeilings) {
  const headrace_device_info device = headrace::cpu_info();
  headrace_ceiling_options options;
  headrace_ceiling_options_init(&options);
  options.num_rounds = 1;
  options.round_seconds = 0;
  headrace_ceilings* ceilings = nullptr;
  ASSERT_EQ(headrace_ceilings_measure(&device, &options, &ceilings), HEADRACE_OK);
  expect_reads_the_size<headrace_ceiling>(
      "ceiling", "ceiling", [&](auto* to) { return headrace_ceilings_get(ceilings, 0, to); });
  headrace_ceilings_destroy(ceilings);
}

TEST(StructSizes, OfPredictions) {
  const headrace_device_info device = headrace::device_from_text("cpu:avx2:2");
  headrace_problem problem;
  headrace_problem_init(&problem);
  problem.seqlen_q = problem.seqlen_k = 64;
  const headrace::Plan plan = headrace::plan_attention(problem, device);
  headrace_ceiling ceilings[2] = {};
  for (headrace_ceiling& c : ceilings) {
    c.struct_size = sizeof c;
    c.num_units = 2;
    c.resource = "avx2";
    c.operation = "f32";
    c.value = 1e11;
  }
  ceilings[1].kind = HEADRACE_CEILING_BANDWIDTH;
  ceilings[1].resource = "DRAM";
  ceilings[1].operation = "read";
  headrace_prediction* prediction = nullptr;
  ASSERT_EQ(headrace_plan_predict(plan.get(), ceilings, 2, &prediction), HEADRACE_OK);
  expect_reads_the_size<headrace_prediction_info>(
      "info", "info", [&](auto* to) { return headrace_prediction_get(prediction, to); });
  expect_reads_the_size<headrace_prediction_part>(
      "part", "part", [&](auto* to) { return headrace_prediction_get_part(prediction, 0, to); });
  headrace_prediction_destroy(prediction);
  ceilings[1].struct_size -= 8;
  EXPECT_EQ(headrace_plan_predict(plan.get(), ceilings, 2, &prediction), HEADRACE_INVALID_ARGUMENT);
}

TEST(StructSizes, OfTunedCalls) {
  float x = 1, out = 0;
  const auto view = [](float& of) {
    return headrace::TensorView(&of, headrace::DType::f32, {1, 1, 1, 1});
  };
  const headrace::AttentionTensors tensors{
      .q = view(x), .k = view(x), .v = view(x), .out = view(out)};
  const headrace_device_info device = headrace::cpu_info();
  const headrace::Plan plan = headrace::plan_attention(headrace::Problem(tensors), device);
  const headrace_attention_tensors c_tensors = tensors.to_c();
  headrace_tune_options options;
  ASSERT_EQ(headrace_tune_options_init(&options), HEADRACE_OK);
  options.num_rounds = 1;
  options.round_seconds = 0;
  headrace_tuning* tuning = nullptr;
  ASSERT_EQ(headrace_tuning_create(&device, &tuning), HEADRACE_OK);
  ASSERT_EQ(headrace_plan_tune(plan.get(), &c_tensors, nullptr, nullptr, &options, nullptr, tuning,
                               nullptr),
            HEADRACE_OK);
  expect_reads_the_size<headrace_tuned_call>(
      "call", "call", [&](auto* to) { return headrace_tuning_get(tuning, 0, to); });
  headrace_tuning_destroy(tuning);
}

TEST(StructSizes, OfStepCosts) {
  const std::string path = std::string(HEADRACE_GOLDEN_DIR) + "/tiny/tiny_llama3_f16.gguf";
  headrace_model_file* file = nullptr;
  ASSERT_EQ(headrace_model_file_open(path.c_str(), &file), HEADRACE_OK);
  headrace_step_shape shape{};
  shape.struct_size = sizeof shape;
  shape.num_seqs = shape.seqlen_q = shape.seqlen_k = 1;
  shape.cache_dtype = HEADRACE_F16;
  const headrace_device_info device = headrace::cpu_info();
  headrace_step* step = nullptr;
  ASSERT_EQ(headrace_step_explain(file, &shape, &device, &step), HEADRACE_OK);
  expect_reads_the_size<headrace_operator_cost>(
      "cost", "cost", [&](auto* to) { return headrace_step_get(step, 0, to); });
  headrace_step_destroy(step);
  headrace_model_file_close(file);
}

TEST(StructSizes, OfModelInfos) {
  const std::string path = std::string(HEADRACE_GOLDEN_DIR) + "/tiny/tiny_llama3_f16.gguf";
  headrace_model_file* file = nullptr;
  ASSERT_EQ(headrace_model_file_open(path.c_str(), &file), HEADRACE_OK);
  expect_reads_the_size<headrace_weight_info>(
      "weight", "info", [&](auto* to) { return headrace_model_file_weight(file, 0, to); });
  headrace_model_file_close(file);
  headrace_model* model = nullptr;
  ASSERT_EQ(headrace_model_load(path.c_str(), nullptr, &model), HEADRACE_OK);
  expect_reads_the_size<headrace_model_info>(
      "model", "info", [&](auto* to) { return headrace_model_get_info(model, to); });
  headrace_session* session = nullptr;
  ASSERT_EQ(headrace_session_create(model, nullptr, &session), HEADRACE_OK);
  const std::int32_t prompt[] = {89, 271};
  headrace_generation_options options;
  headrace_generation_options_init(&options);
  options.max_new_tokens = 3;  // the first two enter the session
  options.ignore_end = 1;
  expect_reads_the_size<headrace_generation>("generation", "result", [&](auto* to) {
    headrace_session_truncate(session, 0);
    headrace_session_append(session, prompt, 2, nullptr);
    const headrace_status status = headrace_session_generate(session, &options, to);
    // A result that cannot be written is refused before sampling.
    EXPECT_EQ(headrace_session_length(session), status == HEADRACE_OK ? 4 : 2);
    return status;
  });
  headrace_session_truncate(session, 0);
  headrace_session_append(session, prompt, 2, nullptr);
  headrace_completions* completions = nullptr;
  ASSERT_EQ(headrace_session_generate_n(session, &options, 1, nullptr, nullptr, &completions),
            HEADRACE_OK);
  expect_reads_the_size<headrace_completion>("completion", "completion", [&](auto* to) {
    return headrace_completions_get(completions, 0, to);
  });
  headrace_completions_destroy(completions);
  headrace_session_destroy(session);
  headrace_model_destroy(model);
}

TEST(StructSizes, OfEngines) {
  const headrace::Model model(std::string(HEADRACE_GOLDEN_DIR) + "/tiny/tiny_llama3_f16.gguf");
  headrace::Engine engine(model);
  expect_reads_the_size<headrace_engine_stats>(
      "stats", "stats", [&](auto* to) { return headrace_engine_get_stats(engine.get(), to); });
  engine.add({.prompt = {89, 271}, .max_new_tokens = 3, .num_logprobs = 2});
  engine.run();
  headrace_output* output = nullptr;
  ASSERT_EQ(headrace_engine_poll(engine.get(), &output), HEADRACE_OK);
  ASSERT_NE(output, nullptr);
  expect_reads_the_size<headrace_output_info>(
      "output", "info", [&](auto* to) { return headrace_output_get(output, to); });
  headrace_output_destroy(output);
}

TEST(StructSizes, OfKvCaches) {
  headrace::KvCache cache({.num_layers = 1, .num_kv_heads = 1, .head_dim = 8, .num_pages = 2});
  const std::int64_t sequence = cache.add({}).sequence;
  expect_reads_the_size<headrace_kv_sequence_info>("sequence", "info", [&](auto* to) {
    return headrace_kv_cache_get_sequence_info(cache.get(), sequence, to);
  });
  expect_reads_the_size<headrace_kv_cache_stats>(
      "stats", "stats", [&](auto* to) { return headrace_kv_cache_get_stats(cache.get(), to); });
}

// If a program ignores the status of an init function, the next call fails.
TEST(StructSizes, UninitializedStructsAreRejected) {
  Guarded<headrace_problem> newer;
  EXPECT_EQ(headrace_problem_init_sized(newer.get(), sizeof(headrace_problem) + 8),
            HEADRACE_INVALID_ARGUMENT);
  headrace_device_info device{};
  device.struct_size = sizeof device;
  ASSERT_EQ(headrace_cpu_info(&device), HEADRACE_OK);
  EXPECT_EQ(headrace_attention_supports(newer.get(), &device), HEADRACE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(headrace_last_error()).find("problem.struct_size=0"), std::string::npos);
}

}  // namespace
