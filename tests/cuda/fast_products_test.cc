// Models whose large products are cuBLASLt's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <headrace/engine.hpp>
#include <headrace/step.hpp>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cuda/gpu.h"

namespace headrace::testing {
namespace {

class FastProducts : public ::testing::Test {
 protected:
  void SetUp() override {
    HEADRACE_NEEDS_GPU(80);
    RandomModel random;
    random.shape = find_model_shape("smollm2-135m");
    random.shape.num_layers = 2;
    random.shape.context_length = 1024;
    random.weight_type = "BF16";
    plain_.emplace(random, ModelOptions{.device_type = HEADRACE_CUDA});
    try {
      fast_.emplace(random, ModelOptions{.device_type = HEADRACE_CUDA, .fast = true});
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
    for (std::int32_t i = 0; i < 400; ++i) tokens_.push_back(i * 7919 % 1000 + 300);
  }
  // Of the last of the first `count` tokens.
  std::vector<float> logits_of(const Model& model, std::size_t count) const {
    Session session(model, {.cache_dtype = DType::bf16});
    session.append(std::span(tokens_).first(count));
    return {session.logits(), session.logits() + model.info().vocab_size};
  }

  std::optional<Model> plain_, fast_;
  std::vector<std::int32_t> tokens_;
};

// Sums of other orders round differently: by a bf16 rounding of 2^-9 here and there.
TEST_F(FastProducts, LogitsAreThoseOfOurOwnWithinRounding) {
  EXPECT_EQ(fast_->info().fast, 1);
  EXPECT_EQ(plain_->info().fast, 0);
  for (const std::size_t count : {129, 200, 400}) {
    const std::vector<float> plain = logits_of(*plain_, count), fast = logits_of(*fast_, count);
    double size = 0, difference = 0;
    for (std::size_t i = 0; i < plain.size(); ++i) {
      size = std::max(size, std::abs(static_cast<double>(plain[i])));
      difference = std::max(difference, std::abs(static_cast<double>(plain[i] - fast[i])));
    }
    EXPECT_GT(size, 0);
    EXPECT_LE(difference, 40 * 0x1p-9 * size) << count << " tokens";
  }
}

// Up to 128 tokens the products are our own.
TEST_F(FastProducts, FewTokensHaveTheBitsOfOurOwn) {
  for (const std::size_t count : {1, 17, 128})
    EXPECT_EQ(logits_of(*fast_, count), logits_of(*plain_, count)) << count << " tokens";
}

// Steps of 160 decodes are graphs, whose products are cuBLASLt's.
TEST_F(FastProducts, AnEngineDecodesManySequences) {
  Engine engine(*fast_, {.max_num_seqs = 160, .num_pages = 2000, .cache_dtype = DType::bf16});
  Request request{.prompt = std::vector<std::int32_t>(tokens_.begin(), tokens_.begin() + 30),
                  .n = 160,
                  .max_new_tokens = 12};
  request.sampling = {.temperature = 1, .seed = 5};
  request.ignore_end = true;
  engine.add(request);
  engine.run();
  std::size_t num_tokens = 0;
  while (const auto output = engine.poll()) {
    EXPECT_EQ(output->error, "");
    num_tokens += output->tokens.size();
  }
  EXPECT_EQ(num_tokens, 160u * 12);
}

TEST_F(FastProducts, TimedStepsNameThem) {
  Session session(*fast_, {.cache_dtype = DType::bf16});
  const auto kernels = [&](std::int64_t num_tokens) {
    std::map<std::string, std::string> names;
    for (const OperatorCost& op : time_step(session, num_tokens, 1).operators)
      names[op.name] = op.kernel;
    return names;
  };
  const auto many = kernels(200), few = kernels(100);
  for (const char* name : {"linear qkv", "linear attn_output", "linear gate_up", "linear down"})
    EXPECT_EQ(many.at(name), "cublaslt") << name;
  EXPECT_EQ(many.at("swiglu"), "cuda_swiglu");
  EXPECT_NE(few.at("linear qkv"), "cublaslt");
  EXPECT_TRUE(few.contains("linear gate_up, swiglu"));
}

}  // namespace
}  // namespace headrace::testing
