// An engine on a GPU whose sequences begin with the same pages: the tokens are those of each
// request alone, computed without any other and without a prefix cache.
#include <gtest/gtest.h>

#include <headrace/engine.hpp>
#include <map>
#include <vector>

#include "cuda/gpu.h"

namespace headrace::testing {
namespace {

using Answers = std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::int32_t>>;

Answers answers_of(Engine& engine) {
  engine.run();
  Answers answers;
  while (const auto output = engine.poll()) {
    EXPECT_EQ(output->error, "");
    auto& tokens = answers[{output->id, output->sample}];
    tokens.insert(tokens.end(), output->tokens.begin(), output->tokens.end());
  }
  return answers;
}

// 8 KV heads of 64 + 64 bf16 numbers are 2 KiB a key: with 185 sequences and 1536 shared keys, more
// than 192 MiB, a step reads them once.
TEST(EnginePrefix, TokensAreThoseOfTheRequestAlone) {
  HEADRACE_NEEDS_GPU(90);
  RandomModel random;
  random.shape = find_model_shape("smollm2-135m");
  random.shape.num_layers = 2;
  random.shape.num_heads = 16;
  random.shape.num_kv_heads = 8;
  random.shape.context_length = 2048;
  random.weight_type = "BF16";
  const Model model(random, {.device_type = HEADRACE_CUDA});
  std::vector<std::int32_t> prompt;
  for (std::int32_t i = 0; i < 1700; ++i) prompt.push_back(i * 7919 % 1000 + 300);
  std::vector<Request> requests;
  for (std::int32_t i = 0; i < 6; ++i) {
    Request request{.prompt = prompt, .n = i == 0 ? 180 : 1, .max_new_tokens = 12};
    for (std::int32_t j = 0; j < 40 * i; ++j) request.prompt.push_back(300 + i);
    if (i == 5) request.prompt.resize(700);
    request.sampling = {.temperature = 1, .seed = static_cast<std::uint64_t>(i)};
    request.ignore_end = true;
    requests.push_back(request);
  }
  const auto engine_with = [&](std::int64_t max_num_seqs, bool has_prefix_cache) {
    return Engine(model, {.max_num_seqs = max_num_seqs,
                          .num_pages = 2000,
                          .cache_dtype = DType::bf16,
                          .has_prefix_cache = has_prefix_cache});
  };
  Engine alone = engine_with(1, false), crowd = engine_with(256, true);
  for (Engine* engine : {&alone, &crowd})
    for (const Request& request : requests) engine->add(request);
  const Answers expected = answers_of(alone);
  ASSERT_EQ(expected.size(), 185u);
  EXPECT_EQ(answers_of(crowd), expected);
  EXPECT_EQ(headrace_check(HEADRACE_CUDA, 0, nullptr), HEADRACE_OK) << headrace_last_error();
}

}  // namespace
}  // namespace headrace::testing
