// Tiny models of every family (tests/golden/README.md) on a GPU, beside the CPU executor.
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "backends/cuda/backend.h"
#include "core/device.h"
#include "cuda/gpu.h"
#include "engine/session.h"

namespace headrace::testing {
namespace {

using engine::LanguageModel;
using engine::ModelRunner;
using engine::Session;
using Tokens = std::vector<std::int32_t>;
using Logits = std::vector<float>;

constexpr std::int64_t kMaxTokens = 96;

engine::LoadOptions options_of(bool is_on_gpu) {
  engine::LoadOptions options;
  options.host = cpu_info().value();
  options.host.num_units = 2;
  // The CPU computes in f32 and is the reference.
  options.mode = is_on_gpu ? MatmulMode::normal : MatmulMode::exact;
  if (is_on_gpu) options.device = cuda::device_info(0).value();
  return options;
}

LanguageModel load(const char* file, bool is_on_gpu) {
  Result<LanguageModel> model = engine::load_language_model(
      std::string(HEADRACE_GOLDEN_DIR) + "/tiny/" + file, options_of(is_on_gpu));
  if (!model.ok()) throw std::runtime_error(model.failure().message);
  return std::move(model.value());
}

Session session_of(const LanguageModel& model, DType dtype, std::int64_t batch_tokens = 512,
                   std::int64_t page_size = 16) {
  Result<Session> session = Session::make(model, {.max_tokens = kMaxTokens,
                                                  .batch_tokens = batch_tokens,
                                                  .cache_dtype = dtype,
                                                  .page_size = page_size});
  if (!session.ok()) throw std::runtime_error(session.failure().message);
  return std::move(session.value());
}

Tokens tokens_from(std::int32_t first, std::size_t count) {
  Tokens tokens(count);
  for (std::size_t i = 0; i < count; ++i)
    tokens[i] = (first + 37 * static_cast<std::int32_t>(i)) % 280;
  return tokens;
}

// Of every token, [tokens, vocab_size].
Logits append(Session& session, const Tokens& tokens) {
  Logits logits(tokens.size() * static_cast<std::size_t>(session.decoder().config.vocab_size));
  const Status failed = session.append(tokens, logits.data());
  EXPECT_FALSE(failed) << failed->message;
  return logits;
}

double largest(const Logits& x) {
  double found = 0;
  for (const float e : x) found = std::max(found, std::abs(static_cast<double>(e)));
  return found;
}

double largest_difference(const Logits& a, const Logits& b) {
  double found = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(difference <= found)) found = difference;  // a NaN stays
  }
  return found;
}

// A value is rounded to bf16 by at most 2^-8 of itself, on average by less than 2^-9, which counts
// where many roundings add up. Roundings on the way of a logit: embedding,
// final norm and output matrix; in a layer two norms, Q K V, q and the cache, attention and its
// cast, SwiGLU, gate and up, twice the residual stream, and seven matrices. The bound is their sum
// in units of the largest logit, as if all had the same sign.
double rounding_bound(const LanguageModel& model, const Logits& logits) {
  constexpr double kOfLayer = 18, kOfModel = 3;
  const auto num_layers = static_cast<double>(model.decoder->config.num_layers);
  return (kOfLayer * num_layers + kOfModel) * 0x1p-9 * largest(logits);
}

class DecoderOnGpu : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { HEADRACE_NEEDS_GPU(80); }
};
// Grouped heads, head_dim 16 and 32, biases of Q K V, both layouts of RoPE, tied and other output
// matrices.
INSTANTIATE_TEST_SUITE_P(Models, DecoderOnGpu,
                         ::testing::Values("tiny_llama3_f16.gguf", "tiny_llama_headdim32_q8_0.gguf",
                                           "tiny_llama2_q4_0.gguf", "tiny_mistral_q4_1.gguf",
                                           "tiny_qwen2_f32.gguf", "tiny_qwen2_q5_0.gguf"),
                         [](const auto& test) {
                           const std::string file = test.param;
                           return file.substr(0, file.find('.'));
                         });

TEST_P(DecoderOnGpu, LogitsAreThoseOfTheCpuWithinTheRoundingOfBf16) {
  const LanguageModel cpu = load(GetParam(), false), gpu = load(GetParam(), true);
  const Tokens prompt = tokens_from(3, 70);
  Session on_cpu = session_of(cpu, DType::f32);
  const Logits expected = append(on_cpu, prompt);
  const double bound = rounding_bound(cpu, expected);
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32})
    for (const std::int64_t batch_tokens : {512, 33, 1}) {
      Session on_gpu = session_of(gpu, dtype, batch_tokens);
      EXPECT_LE(largest_difference(append(on_gpu, prompt), expected), bound)
          << dtype_name(dtype) << ", steps of " << batch_tokens;
    }
}

// A window that ends in the prompt, within a page and a k-block.
TEST_P(DecoderOnGpu, WindowsAreThoseOfTheCpu) {
  LanguageModel cpu = load(GetParam(), false), gpu = load(GetParam(), true);
  const Tokens prompt = tokens_from(3, 70);
  Session without_window = session_of(cpu, DType::f32);
  const Logits every_key = append(without_window, prompt);
  for (const std::int64_t window : {1, 13}) {
    cpu.decoder->config.window = gpu.decoder->config.window = window;
    Session on_cpu = session_of(cpu, DType::f32);
    const Logits expected = append(on_cpu, prompt);
    const double bound = rounding_bound(cpu, expected);
    ASSERT_GT(largest_difference(every_key, expected), 2 * bound) << "the window has no effect";
    for (const std::int64_t batch_tokens : {512, 1}) {
      Session on_gpu = session_of(gpu, DType::bf16, batch_tokens);
      EXPECT_LE(largest_difference(append(on_gpu, prompt), expected), bound)
          << window << ", steps of " << batch_tokens;
    }
  }
}

// The CPU's tokens are appended to both. Where the margin of the most likely token is larger than
// the errors of two logits, the GPU chooses it, too.
TEST_P(DecoderOnGpu, GreedyTokensAreThoseOfTheCpu) {
  const LanguageModel cpu = load(GetParam(), false), gpu = load(GetParam(), true);
  Session on_cpu = session_of(cpu, DType::f32), on_gpu = session_of(gpu, DType::bf16);
  Tokens next = tokens_from(5, 9);
  int num_compared = 0;
  for (int step = 0; step < 32; ++step) {
    ASSERT_FALSE(on_cpu.append(next, nullptr));
    ASSERT_FALSE(on_gpu.append(next, nullptr));
    const auto vocab_size = static_cast<std::ptrdiff_t>(on_cpu.decoder().config.vocab_size);
    Logits logits(on_cpu.logits(), on_cpu.logits() + vocab_size);
    const auto best = std::ranges::max_element(logits) - logits.begin();
    const float* got = on_gpu.logits();
    const auto chosen = std::max_element(got, got + vocab_size) - got;
    const double bound = rounding_bound(cpu, logits);
    std::ranges::sort(logits, std::greater());
    if (static_cast<double>(logits[0]) - static_cast<double>(logits[1]) > 2 * bound) {
      EXPECT_EQ(chosen, best) << step;
      ++num_compared;
    }
    next = {static_cast<std::int32_t>(best)};
  }
  EXPECT_GT(num_compared, 0);
}

// Keys are read in the same order from any pages.
TEST_P(DecoderOnGpu, BitsDoNotDependOnThePageSize) {
  const LanguageModel gpu = load(GetParam(), true);
  const Tokens prompt = tokens_from(11, 70);
  for (const std::int64_t batch_tokens : {512, 1}) {
    Session first = session_of(gpu, DType::bf16, batch_tokens, 16);
    const Logits expected = append(first, prompt);
    for (const std::int64_t page_size : {1, 7, 32, 96}) {
      Session session = session_of(gpu, DType::bf16, batch_tokens, page_size);
      EXPECT_EQ(append(session, prompt), expected) << page_size << ", " << batch_tokens;
    }
  }
}

TEST_P(DecoderOnGpu, TruncatedTokensLeaveNoTrace) {
  const LanguageModel gpu = load(GetParam(), true);
  const Tokens prompt = tokens_from(2, 40);
  Session session = session_of(gpu, DType::bf16);
  const Logits first = append(session, prompt);
  ASSERT_FALSE(session.truncate(3));
  append(session, tokens_from(9, 20));
  ASSERT_FALSE(session.truncate(0));
  EXPECT_EQ(append(session, prompt), first);
}

// The same of one token in the session's own memory, which the device writes.
Logits append_to_own(Session& session, std::int32_t token) {
  const Status failed = session.append({&token, 1}, nullptr);
  EXPECT_FALSE(failed) << failed->message;
  return {session.logits(), session.logits() + session.decoder().config.vocab_size};
}

// A decode step runs eagerly, then it is captured, then the graph is launched, by its operators or
// without them: with other tokens and lengths in between.
TEST_P(DecoderOnGpu, GraphsGiveTheBitsOfEagerSteps) {
  const LanguageModel gpu = load(GetParam(), true);
  for (const std::int64_t page_size : {16, 7}) {
    std::vector<Logits> eager;
    for (std::int32_t length = 40; length < 60; ++length) {
      Session session = session_of(gpu, DType::bf16, 512, page_size);
      append(session, tokens_from(2, static_cast<std::size_t>(length)));
      eager.push_back(append(session, {length}));  // the session's first step of one token
    }
    Session session = session_of(gpu, DType::bf16, 512, page_size);
    for (const std::int32_t length : {40, 59, 40, 47, 51, 41, 59, 40}) {
      ASSERT_FALSE(session.truncate(0));
      append(session, tokens_from(2, static_cast<std::size_t>(length)));
      const Logits& want = eager[static_cast<std::size_t>(length - 40)];
      EXPECT_EQ(append_to_own(session, length), want) << length;
      ASSERT_FALSE(session.truncate(length));
      EXPECT_EQ(append(session, {length}), want) << length;
    }
  }
}

class Batches {
 public:
  explicit Batches(const LanguageModel& model)
      : vocab_size_(static_cast<std::size_t>(model.decoder->config.vocab_size)),
        runner_(std::move(
            ModelRunner::make(model, {.num_pages = 64, .cache_dtype = DType::bf16}).value())) {}

  std::int64_t add() { return runner_.cache().add({}, 0).value().sequence; }

  // The logits of the last token of each part.
  Logits step(const std::vector<ModelRunner::Part>& parts) {
    Logits logits(parts.size() * vocab_size_);
    const Status failed = runner_.step(parts, logits.data());
    EXPECT_FALSE(failed) << failed->message;
    return logits;
  }

 private:
  std::size_t vocab_size_;
  ModelRunner runner_;
};

// Prompts of different lengths in one step, then tokens of all sequences in one step: the attention
// of both has the kernel of the sequence alone.
TEST_P(DecoderOnGpu, BitsOfASequenceDoNotDependOnItsBatch) {
  const LanguageModel gpu = load(GetParam(), true);
  Batches batches(gpu);
  const std::vector<Tokens> prompts = {tokens_from(5, 33), tokens_from(11, 64), tokens_from(2, 40)};
  const Tokens next = {8, 100, 33};
  std::vector<ModelRunner::Part> prompt_parts, next_parts;
  Logits prompts_alone, next_alone;
  for (std::size_t s = 0; s < prompts.size(); ++s) {
    const ModelRunner::Part prompt{.sequence = batches.add(), .tokens = prompts[s]},
        token{.sequence = prompt.sequence, .tokens = std::span(next).subspan(s, 1)};
    for (const auto& [part, logits] : {std::pair(&prompt, &prompts_alone), {&token, &next_alone}}) {
      const Logits got = batches.step({*part});
      logits->insert(logits->end(), got.begin(), got.end());
    }
    const std::int64_t together = batches.add();
    prompt_parts.push_back({.sequence = together, .tokens = prompts[s]});
    next_parts.push_back({.sequence = together, .tokens = token.tokens});
  }
  EXPECT_EQ(batches.step(prompt_parts), prompts_alone);
  EXPECT_EQ(batches.step(next_parts), next_alone);
}

// Steps of one and of two sequences in turn, until all are repeated graphs; beside them each
// sequence alone.
TEST_P(DecoderOnGpu, GraphsOfOtherShapesAreNotTaken) {
  const LanguageModel gpu = load(GetParam(), true);
  Batches together(gpu), first_alone(gpu), second_alone(gpu);
  const std::int64_t first = together.add(), second = together.add();
  const std::int64_t first_of = first_alone.add(), second_of = second_alone.add();
  const Tokens prompt = tokens_from(2, 5);
  for (const auto& [batches, sequence] : {std::pair(&together, first),
                                          {&together, second},
                                          {&first_alone, first_of},
                                          {&second_alone, second_of}})
    batches->step({{.sequence = sequence, .tokens = prompt}});
  for (std::int32_t round = 0; round < 5; ++round) {
    const Tokens tokens = {round, 100 + round, 200 + round};
    const auto part = [&](std::int64_t sequence, std::size_t token) {
      return ModelRunner::Part{.sequence = sequence, .tokens = std::span(tokens).subspan(token, 1)};
    };
    EXPECT_EQ(together.step({part(first, 0)}), first_alone.step({part(first_of, 0)})) << round;
    Logits want = first_alone.step({part(first_of, 1)});
    const Logits rest = second_alone.step({part(second_of, 2)});
    want.insert(want.end(), rest.begin(), rest.end());
    EXPECT_EQ(together.step({part(first, 1), part(second, 2)}), want) << round;
  }
}

TEST(DecoderOnGpuErrors, ADeviceThatDoesNotExist) {
  HEADRACE_NEEDS_GPU(80);
  engine::LoadOptions options = options_of(true);
  options.device->device_id = 63;
  const Result<LanguageModel> model = engine::load_language_model(
      std::string(HEADRACE_GOLDEN_DIR) + "/tiny/tiny_qwen2_f32.gguf", options);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.failure().code, ErrorCode::invalid_argument);
  EXPECT_TRUE(model.failure().message.starts_with("device_id=63: ")) << model.failure().message;
}

TEST(DecoderOnGpuErrors, ColumnsThatAreNoMultipleOfEight) {
  HEADRACE_NEEDS_GPU(80);
  const auto device = std::move(cuda::make_device(0).value());
  const std::vector<float> matrix(3 * 12);
  const Result<Weight> weight =
      make_executor(*device, MatmulMode::normal)
          .value()
          ->prepare(WeightType::f32, 3, 12,
                    WeightBlocks(reinterpret_cast<const std::byte*>(matrix.data())));
  ASSERT_FALSE(weight.ok());
  EXPECT_EQ(weight.failure().code, ErrorCode::unsupported);
  EXPECT_EQ(weight.failure().message,
            "a matrix of 3 rows and 12 columns: on a CUDA device the columns must be a multiple of "
            "8; load the model on the CPU");
}

TEST(DecoderOnGpuErrors, TokensOutsideTheVocabulary) {
  HEADRACE_NEEDS_GPU(80);
  const LanguageModel gpu = load("tiny_qwen2_f32.gguf", true);
  ModelRunner runner = std::move(ModelRunner::make(gpu, {.num_pages = 4}).value());
  const std::int64_t sequence = runner.cache().add({}, 0).value().sequence;
  Logits logits(static_cast<std::size_t>(gpu.decoder->config.vocab_size));
  for (const std::int32_t token : {-1, 288}) {
    const ModelRunner::Part part{.sequence = sequence, .tokens = {&token, 1}};
    const Status failed = runner.step({&part, 1}, logits.data());
    ASSERT_TRUE(failed);
    EXPECT_EQ(failed->code, ErrorCode::invalid_argument);
    EXPECT_EQ(runner.cache().info(sequence).value().length, 0);
  }
}

}  // namespace
}  // namespace headrace::testing
