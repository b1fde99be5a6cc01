// Defaults, limits, names and output handles of the C API: each of them, one at a time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headrace/engine.h"
#include "headrace/headrace.hpp"
#include "headrace/kv_cache.h"
#include "headrace/model.hpp"

namespace {

const std::string kFile = std::string(HEADRACE_GOLDEN_DIR) + "/tiny/tiny_llama3_f16.gguf";

testing::AssertionResult last_error_begins(std::string_view text) {
  const std::string error = headrace_last_error();
  if (error.starts_with(text)) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << "\"" << error << "\" does not begin with \"" << text << "\"";
}

TEST(Defaults, AreThoseOfTheHeaders) {
  headrace_session_options session;
  ASSERT_EQ(headrace_session_options_init(&session), HEADRACE_OK);
  EXPECT_EQ(session.max_tokens, 0);
  EXPECT_EQ(session.batch_tokens, 0);
  EXPECT_EQ(session.cache_dtype, HEADRACE_F16);
  EXPECT_EQ(session.page_size, 16);
  EXPECT_EQ(session.num_pages, 0);
  EXPECT_EQ(session.sparq_components, 0);
  EXPECT_EQ(session.sparq_keys, 0);

  headrace_sampling_options sampling;
  ASSERT_EQ(headrace_sampling_options_init(&sampling), HEADRACE_OK);
  EXPECT_EQ(sampling.temperature, 0);
  EXPECT_EQ(sampling.top_p, 1);
  EXPECT_EQ(sampling.min_p, 0);
  EXPECT_EQ(sampling.repetition_penalty, 1);
  EXPECT_EQ(sampling.presence_penalty, 0);
  EXPECT_EQ(sampling.frequency_penalty, 0);
  EXPECT_EQ(sampling.top_k, 0);
  EXPECT_EQ(sampling.repetition_window, 0);
  EXPECT_EQ(sampling.order, HEADRACE_ORDER_VLLM);

  headrace_beam_options beams;
  ASSERT_EQ(headrace_beam_options_init(&beams), HEADRACE_OK);
  EXPECT_EQ(beams.beam_width, 4);
  EXPECT_EQ(beams.length_penalty, 1);
  EXPECT_EQ(beams.max_new_tokens, 0);
  EXPECT_EQ(beams.ignore_end, 0);

  headrace_kv_cache_options cache;
  ASSERT_EQ(headrace_kv_cache_options_init(&cache), HEADRACE_OK);
  EXPECT_EQ(cache.head_dim_v, 0);
  EXPECT_EQ(cache.num_host_pages, 0);
  EXPECT_EQ(cache.page_size, 16);
  EXPECT_EQ(cache.dtype, HEADRACE_F16);
  EXPECT_EQ(cache.layout, HEADRACE_KV_NHD);
  EXPECT_EQ(cache.device_type, HEADRACE_CPU);
  EXPECT_EQ(cache.k_dtype, -1);
  EXPECT_EQ(cache.v_dtype, -1);
  EXPECT_EQ(cache.num_recent_pages, 0);

  headrace_kv_append_options append;
  ASSERT_EQ(headrace_kv_append_options_init(&append), HEADRACE_OK);
  EXPECT_EQ(append.rope, nullptr);
  EXPECT_EQ(append.norm_eps, 1e-6);
  EXPECT_EQ(append.hadamard, 0);
}

TEST(Defaults, OfEnginesAreThoseOfTheHeader) {
  headrace_engine_options engine;
  ASSERT_EQ(headrace_engine_options_init(&engine), HEADRACE_OK);
  EXPECT_EQ(engine.max_tokens, 0);
  EXPECT_EQ(engine.max_batch_tokens, 0);
  EXPECT_EQ(engine.max_num_seqs, 0);
  EXPECT_EQ(engine.max_requests, 1024);
  EXPECT_EQ(engine.page_size, 16);
  EXPECT_EQ(engine.num_pages, 0);
  EXPECT_EQ(engine.num_host_pages, 0);
  EXPECT_EQ(engine.cache_dtype, HEADRACE_F16);
  EXPECT_EQ(engine.no_prefix_cache, 0);

  headrace_request request;
  ASSERT_EQ(headrace_request_init(&request), HEADRACE_OK);
  EXPECT_EQ(request.sampling, nullptr);
  EXPECT_EQ(request.n, 1);
  EXPECT_EQ(request.max_new_tokens, 0);
  EXPECT_EQ(request.priority, 0);
  EXPECT_EQ(request.num_logprobs, -1);
  EXPECT_EQ(request.ignore_end, 0);
  EXPECT_EQ(request.beam_width, 0);
  EXPECT_EQ(request.length_penalty, 1);
}

TEST(Defaults, OfAttentionAreThoseOfTheHeader) {
  headrace_attention_options attention;
  ASSERT_EQ(headrace_attention_options_init(&attention), HEADRACE_OK);
  EXPECT_TRUE(std::isnan(attention.softmax_scale));
  EXPECT_EQ(attention.window_left, -1);
  EXPECT_EQ(attention.window_right, -1);

  headrace_problem problem;
  ASSERT_EQ(headrace_problem_init(&problem), HEADRACE_OK);
  for (const std::int64_t size :
       {problem.batch, problem.seqlen_q, problem.seqlen_k, problem.num_heads, problem.num_kv_heads,
        problem.head_dim, problem.head_dim_v})
    EXPECT_EQ(size, 1);
  EXPECT_EQ(problem.window_left, -1);
  EXPECT_EQ(problem.window_right, -1);
  EXPECT_TRUE(std::isnan(problem.softmax_scale));
  EXPECT_EQ(problem.dtype, HEADRACE_F32);
  EXPECT_EQ(problem.bias_dtype, -1);
  EXPECT_EQ(problem.alignment, 16);
}

// The alignments are the powers of two up to 16, and 0 is 16.
TEST(Limits, AlignmentsOfProblems) {
  const headrace::DeviceInfo device = headrace::cpu_info();
  for (std::int32_t alignment = -1; alignment <= 64; ++alignment) {
    headrace_problem problem;
    ASSERT_EQ(headrace_problem_init(&problem), HEADRACE_OK);
    problem.alignment = alignment;
    const bool is_valid = alignment == 0 || alignment == 1 || alignment == 2 || alignment == 4 ||
                          alignment == 8 || alignment == 16;
    EXPECT_EQ(headrace_attention_supports(&problem, &device),
              is_valid ? HEADRACE_OK : HEADRACE_INVALID_ARGUMENT)
        << alignment;
    if (!is_valid) {
      EXPECT_TRUE(
          last_error_begins("problem.alignment=" + std::to_string(alignment) + ": must be 1"));
    }
  }
}

TEST(Limits, RotatedElements) {
  headrace_rope_options rope;
  ASSERT_EQ(headrace_rope_options_init(&rope), HEADRACE_OK);
  std::vector<double> frequencies(576 / 2);
  double factor = 0;
  for (const std::int32_t rot_dim : {2, 4, 574, 576}) {
    rope.rot_dim = rot_dim;
    EXPECT_EQ(headrace_rope_frequencies(&rope, frequencies.data(),
                                        static_cast<std::size_t>(rot_dim / 2), &factor),
              HEADRACE_OK)
        << headrace_last_error();
    EXPECT_EQ(frequencies[0], 1);
    EXPECT_EQ(factor, 1);
  }
  for (const std::int32_t rot_dim : {-2, 0, 1, 3, 577, 578}) {
    rope.rot_dim = rot_dim;
    EXPECT_EQ(
        headrace_rope_frequencies(&rope, frequencies.data(),
                                  static_cast<std::size_t>(std::max(rot_dim, 0) / 2), &factor),
        HEADRACE_INVALID_ARGUMENT);
    EXPECT_TRUE(last_error_begins("rot_dim=" + std::to_string(rot_dim) + ": "));
  }
}

TEST(Limits, SizesOfABatch) {
  headrace_kv_cache_options options;
  ASSERT_EQ(headrace_kv_cache_options_init(&options), HEADRACE_OK);
  options.num_layers = options.num_kv_heads = options.head_dim = options.num_pages = 1;
  headrace_kv_cache* cache = nullptr;
  ASSERT_EQ(headrace_kv_cache_create(&options, &cache), HEADRACE_OK) << headrace_last_error();
  const std::pair<const char*, std::int64_t headrace_kv_batch::*> sizes[] = {
      {"num_sequences", &headrace_kv_batch::num_sequences},
      {"max_pages", &headrace_kv_batch::max_pages},
      {"num_slots", &headrace_kv_batch::num_slots},
      {"max_recent", &headrace_kv_batch::max_recent}};
  for (const auto& [name, field] : sizes)
    for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{1} << 31}) {
      headrace_kv_batch batch{};
      batch.struct_size = sizeof batch;
      batch.*field = bad;
      EXPECT_EQ(headrace_kv_cache_fill_batch(cache, &batch), HEADRACE_INVALID_ARGUMENT);
      EXPECT_EQ(headrace_last_error(), std::string(name) + "=" + std::to_string(bad) +
                                           ": must be 0 to 2147483647; pass the size of the array");
    }
  headrace_kv_batch batch{};
  batch.struct_size = sizeof batch;
  batch.max_pages = batch.num_slots = INT32_MAX;  // of arrays that are not wanted
  EXPECT_EQ(headrace_kv_cache_fill_batch(cache, &batch), HEADRACE_OK) << headrace_last_error();
  headrace_kv_cache_destroy(cache);
}

TEST(Limits, ThreadsOfAModel) {
  for (const int num_threads : {0, 1, 1024}) {
    const headrace::Model model(kFile, {.num_threads = num_threads, .vocab_only = true});
    EXPECT_EQ(model.info().vocab_size, 288);
  }
  for (const std::int32_t num_threads : {-1, 1025, INT32_MAX}) {
    headrace_model_options options;
    ASSERT_EQ(headrace_model_options_init(&options), HEADRACE_OK);
    options.num_threads = num_threads;
    headrace_model* model = nullptr;
    EXPECT_EQ(headrace_model_load(kFile.c_str(), &options, &model), HEADRACE_INVALID_ARGUMENT);
    EXPECT_TRUE(last_error_begins("num_threads=" + std::to_string(num_threads) + ": must be 1"));
    EXPECT_EQ(model, nullptr);
  }
}

TEST(Limits, MostLikelyTokensOfASample) {
  const headrace::Model model(kFile, {});
  headrace::Session session(model);
  session.append(std::vector<std::int32_t>{89, 271});
  std::vector<headrace_token_logprob> top(1025, {-1, 0});
  headrace_token_logprob token{};
  const auto sample = [&](std::size_t num_top) {
    return headrace_session_sample(session.get(), nullptr, 0, &token, top.data(), num_top);
  };
  EXPECT_EQ(sample(1024), HEADRACE_OK) << headrace_last_error();
  EXPECT_EQ(top[0].token, token.token);
  EXPECT_EQ(sample(1025), HEADRACE_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_begins("num_top=1025: must be 0 to 1024"));
  EXPECT_EQ(sample(std::size_t{1} << 32), HEADRACE_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_begins("num_top=4294967296: "));
}

TEST(Arguments, ArraysThatMayBeEmptyAreNamedWhereTheyAreMissing) {
  const headrace::Model model(kFile, {});
  headrace::Session session(model);
  session.append(std::vector<std::int32_t>{89, 271});
  std::size_t count = 7;
  EXPECT_EQ(headrace_tokenize(model.get(), nullptr, 0, 0, nullptr, 0, &count), HEADRACE_OK);
  EXPECT_EQ(count, 0u);
  EXPECT_EQ(headrace_tokenize(model.get(), nullptr, 1, 0, nullptr, 0, &count),
            HEADRACE_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_begins("text=NULL: "));
  EXPECT_EQ(headrace_detokenize(model.get(), nullptr, 0, nullptr, 0, &count), HEADRACE_OK);
  EXPECT_EQ(headrace_detokenize(model.get(), nullptr, 1, nullptr, 0, &count),
            HEADRACE_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_begins("tokens=NULL: "));
  EXPECT_EQ(headrace_token_is_end(nullptr, 0), 0);

  headrace_sampling_options sampling;
  ASSERT_EQ(headrace_sampling_options_init(&sampling), HEADRACE_OK);
  sampling.num_logit_bias = 1;
  headrace_token_logprob token{};
  EXPECT_EQ(headrace_session_sample(session.get(), &sampling, 0, &token, nullptr, 0),
            HEADRACE_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_begins("logit_bias=NULL: "));

  headrace_generation_options options;
  ASSERT_EQ(headrace_generation_options_init(&options), HEADRACE_OK);
  headrace_generation result{};
  result.struct_size = sizeof result;
  options.num_stop = 2;
  EXPECT_EQ(headrace_session_generate(session.get(), &options, &result), HEADRACE_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_begins("stop=NULL: "));
  for (const char* bad : {static_cast<const char*>(nullptr), ""}) {
    const char* stop[] = {"x", bad};
    options.stop = stop;
    EXPECT_EQ(headrace_session_generate(session.get(), &options, &result),
              HEADRACE_INVALID_ARGUMENT);
    EXPECT_TRUE(last_error_begins("stop[1]: must not be NULL or empty"));
  }
  EXPECT_EQ(session.length(), 2);
}

TEST(Arguments, ContentsOfMessagesAreTheirs) {
  const headrace::Model model(kFile, {});
  const auto tokens = [&](const char* role, const char* content) {
    return model.chat_tokens({{role, content}});
  };
  EXPECT_EQ(tokens("user", "one"), tokens("user", "one"));
  EXPECT_NE(tokens("user", "one"), tokens("user", "two"));
  EXPECT_NE(tokens("user", "one"), tokens("assistant", "one"));
}

// A kernel of a plan is one of the list, and only the list has summaries.
TEST(Names, OfPlansAreThoseOfTheKernels) {
  const headrace::DeviceInfo device = headrace::cpu_info();
  for (const std::int32_t phase : {HEADRACE_FORWARD, HEADRACE_BACKWARD}) {
    std::set<std::string> names;
    const int count = headrace_num_kernels(HEADRACE_CPU, phase);
    for (int i = 0; i < count; ++i) {
      const std::string name = headrace_kernel_name(HEADRACE_CPU, phase, i);
      EXPECT_TRUE(names.insert(name).second) << name;
      EXPECT_NE(name, headrace_kernel_summary(HEADRACE_CPU, phase, i));
    }
    int num_refused = 0;
    for (const std::int32_t dtype : {HEADRACE_F32, HEADRACE_BF16, HEADRACE_F64}) {
      headrace_problem problem;
      ASSERT_EQ(headrace_problem_init(&problem), HEADRACE_OK);
      problem.phase = phase;
      problem.has_lse = 1;
      problem.dtype = dtype;
      headrace_plan* plan = nullptr;
      ASSERT_EQ(headrace_plan_attention(&problem, &device, &plan), HEADRACE_OK)
          << headrace_last_error();
      EXPECT_TRUE(names.contains(headrace_plan_kernel(plan))) << headrace_plan_kernel(plan);
      headrace_plan_destroy(plan);
      for (int i = 0; i < count; ++i) {
        const std::string refusal = headrace_kernel_refusal(&problem, &device, i);
        num_refused += !refusal.empty();
      }
    }
    EXPECT_GT(num_refused, 0);
    headrace_problem problem;
    ASSERT_EQ(headrace_problem_init(&problem), HEADRACE_OK);
    problem.phase = phase;
    EXPECT_EQ(headrace_kernel_refusal(&problem, &device, -1), nullptr);
  }
  for (const std::int32_t other : {-1, 2}) {
    EXPECT_EQ(headrace_kernel_name(other, HEADRACE_FORWARD, 0), nullptr);
    EXPECT_EQ(headrace_kernel_name(HEADRACE_CPU, other, 0), nullptr);
  }
}

TEST(Names, OfDevicesWithANumberThatIsNoneAreRefused) {
  headrace_device_info device{};
  device.struct_size = sizeof device;
  for (const std::string text :
       {"cuda:", "cuda:x", "cuda:1x", "cuda:-1", "cuda: 1", "cuda:99999999999"}) {
    EXPECT_EQ(headrace_device_from_text(text.c_str(), &device), HEADRACE_INVALID_ARGUMENT) << text;
    EXPECT_EQ(headrace_last_error(), "device \"" + text +
                                         "\": the device number is invalid; pass, for example, "
                                         "\"cuda:0\"");
  }
  // Device 0 has two names.
  const auto outcome = [&](const char* text) {
    const headrace_status status = headrace_device_from_text(text, &device);
    return status == HEADRACE_OK ? std::string(device.name) : headrace_last_error();
  };
  EXPECT_EQ(outcome("cuda:0"), outcome("cuda"));
}

TEST(Names, TheBuildListsEveryKernelByItsDevice) {
  const std::string info = headrace_build_info();
  const auto cuda = info.find("; cuda kernels");
  ASSERT_NE(cuda, std::string::npos);
  for (const std::int32_t device_type : {HEADRACE_CPU, HEADRACE_CUDA})
    for (const std::int32_t phase : {HEADRACE_FORWARD, HEADRACE_BACKWARD})
      for (int i = 0; i < headrace_num_kernels(device_type, phase); ++i) {
        const auto place =
            info.find(std::string(" ") + headrace_kernel_name(device_type, phase, i));
        ASSERT_NE(place, std::string::npos) << headrace_kernel_name(device_type, phase, i);
        EXPECT_EQ(place > cuda, device_type == HEADRACE_CUDA);
      }
}

TEST(Handles, AreNullAfterAFailure) {
  char object = 0;
  const auto junk = [&]<class T>(T*&) { return reinterpret_cast<T*>(&object); };
  headrace_kv_cache* cache = junk(cache);
  EXPECT_EQ(headrace_kv_cache_create(nullptr, &cache), HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(cache, nullptr);
  headrace_completions* completions = junk(completions);
  const headrace::Model model(kFile, {});
  headrace::Session session(model);
  EXPECT_EQ(headrace_session_beam_search(session.get(), nullptr, &completions),
            HEADRACE_INVALID_ARGUMENT);  // there are no logits
  EXPECT_EQ(completions, nullptr);
}

}  // namespace
