// The tokens of a request, and the bits of the logits that they are drawn from, are those of a
// session of its own: whatever else the engine computes, in whatever chunks, preempted or not, with
// hits in the prefix cache or without, for every page size. On each device.
#pragma once

#include <limits>

#include "base/math.h"
#include "engine/generate.h"
#include "engine/model_fixture.h"
#include "tests/support/engine_fixture.h"

namespace headrace::engine {

struct Setup {
  std::string file;
  MatmulMode mode;
  DType cache_dtype;  // f32 rounds nothing away
  // The CPU without; it returns nothing where there is no such device.
  std::optional<DeviceInfo> (*device)() = nullptr;
  std::optional<DType> codes = {};  // of keys and values
};
inline void PrintTo(const Setup& setup, std::ostream* out) { *out << setup.file; }

class Bits : public ::testing::TestWithParam<Setup> {
 protected:
  static constexpr std::int64_t kNewTokens = 20;

  void SetUp() override {
    const auto [file, mode, cache_dtype, device_of, codes] = GetParam();
    const auto device = device_of == nullptr ? std::optional<DeviceInfo>() : device_of();
    if (device_of != nullptr && !device) GTEST_SKIP() << "no such GPU";
    model_.emplace(
        load(std::string(HEADRACE_GOLDEN_DIR) + "/tiny/" + file, mode, 2, false, device));
  }

  static std::vector<Request> requests() {
    std::vector<Request> all;
    // Short prompts take another path of attention; 30 to 108 tokens may be computed in chunks.
    for (const std::size_t length : {4, 99, 8, 108, 30, 33, 34, 65, 66, 70, 1, 17}) {
      for (const double temperature : {0.0, 3.0}) {
        Request request{.prompt = prompt_of(length, 7), .max_new_tokens = kNewTokens};
        request.sampling = {.temperature = temperature, .seed = length};
        request.ignore_end = true;
        if (length % 2 == 0) request.sampling.num_logprobs = 0;
        if (length % 4 == 0) request.sampling.logprobs_mode = LogprobsMode::processed;
        if (length % 3 == 0) request.sampling.logit_bias = {{40, 2.0f}, {3, -1.0f}, {40, 0.5f}};
        all.push_back(request);
      }
    }
    return all;
  }

  // Of a session of its own.
  Answer expected(const Request& request) {
    const auto& setup = GetParam();
    Session session = std::move(Session::make(*model_, {.cache_dtype = setup.cache_dtype,
                                                        .k_dtype = setup.codes,
                                                        .v_dtype = setup.codes})
                                    .value());
    EXPECT_FALSE(session.append(request.prompt, nullptr));
    Answer answer;
    const auto num_prompt = static_cast<std::int64_t>(request.prompt.size());
    for (;;) {
      const auto vocab_size = static_cast<std::size_t>(model_->decoder->config.vocab_size);
      answer.logits.emplace_back(session.logits(), session.logits() + vocab_size);
      const Sample sample = sample_next(session, request.sampling, 0, num_prompt, sampler_).value();
      answer.tokens.push_back(sample.token);
      answer.logprobs.push_back(sample.logprob);
      if (std::ssize(answer.tokens) == request.max_new_tokens) return answer;
      EXPECT_FALSE(session.append({&sample.token, 1}, nullptr));
    }
  }
  void expect_sessions() {
    // Prompts that go on with the output of another one, which was computed token by token.
    for (const std::size_t i : {8, 12}) {
      Request longer = requests_[i];
      const Answer answer = expected(longer);
      longer.prompt.insert(longer.prompt.end(), answer.tokens.begin(), answer.tokens.end());
      requests_.push_back(longer);
      longer.prompt.resize(longer.prompt.size() + 30, 1);
      requests_.push_back(longer);
    }
    for (const Request& request : requests_) expected_.push_back(expected(request));
  }
  void expect_all(const EngineOptions& options, int num_rounds, const char* name);
  void expect_tokens(EngineOptions options, int num_rounds, bool has_logits);
  void expect_host_draws(const std::vector<Request>& wanted);

  std::optional<LanguageModel> model_;
  Sampler sampler_ = std::move(Sampler::make(cpu_info().value()).value());
  std::vector<Request> requests_ = requests();
  std::vector<Answer> expected_;
  // Of the last engine.
  EngineStats stats_{};
  int num_unfinished_chunks_ = 0;
};

// Where nothing asks for logits, an engine on a GPU computes a step while it draws the tokens of
// the step before.
inline void Bits::expect_all(const EngineOptions& options, int num_rounds, const char* name) {
  SCOPED_TRACE(name);
  if (expected_.empty()) expect_sessions();
  for (const bool has_logits : {false, true}) expect_tokens(options, num_rounds, has_logits);
}

// Adds all requests, several times one after the other.
inline void Bits::expect_tokens(EngineOptions options, int num_rounds, bool has_logits) {
  SCOPED_TRACE(has_logits ? "with logits" : "without");
  Answers answers;
  options.cache_dtype = GetParam().cache_dtype;
  options.k_dtype = options.v_dtype = GetParam().codes;
  if (GetParam().codes) {  // pages of whole groups, and as much memory
    const std::int64_t page_size = whole_page_size(options.page_size, GetParam().codes, {});
    options.num_pages =
        std::max<std::int64_t>(options.num_pages * options.page_size / page_size, 9);
    options.page_size = page_size;
  }
  if (has_logits)
    options.on_logits = [&](std::int64_t request, std::int64_t sample,
                            std::span<const float> logits) -> Status {
      answers[{request, sample}].logits.emplace_back(logits.begin(), logits.end());
      return std::nullopt;
    };
  num_unfinished_chunks_ = 0;
  options.before_step = [&](std::span<const Chunk> chunks) -> Status {
    for (const Chunk& chunk : chunks) num_unfinished_chunks_ += !chunk.is_last;
    return std::nullopt;
  };
  const auto engine = engine_of(*model_, options);
  for (int round = 0; round < num_rounds; ++round) {
    for (const Request& request : requests_) ASSERT_TRUE(engine->add(request).ok());
    ASSERT_FALSE(engine->run());
    poll_all(*engine, answers);
  }
  stats_ = engine->stats();
  EXPECT_EQ(stats_.num_free_pages, stats_.num_pages);
  ASSERT_EQ(std::ssize(answers), num_rounds * std::ssize(requests_));
  for (const auto& [key, answer] : answers) {
    const Answer& good = expected_[static_cast<std::size_t>(key.first - 1) % requests_.size()];
    EXPECT_EQ(answer.tokens, good.tokens) << "request " << key.first;
    EXPECT_EQ(answer.logprobs, good.logprobs) << "request " << key.first;
    if (has_logits) {
      EXPECT_EQ(answer.logits, good.logits) << "request " << key.first;
    }
    EXPECT_EQ(answer.finish, FinishReason::length);
  }
}

TEST_P(Bits, DoNotDependOnOthers) {
  expect_all({.max_num_seqs = 1, .num_pages = 8, .has_prefix_cache = false}, 1, "one at a time");
  expect_all({.max_batch_tokens = 4096, .num_pages = 400, .has_prefix_cache = false}, 1, "crowd");
}

// The engine may draw on its device, where nothing asks for logits.
TEST_P(Bits, TokensAreThoseThatTheHostDraws) {
  requests_.clear();
  for (const auto& [top_k, top_p, min_p, order] : {std::tuple(0, 1.0, 0.0, SamplingOrder::vllm),
                                                   {5, 1.0, 0.0, SamplingOrder::vllm},
                                                   {0, 0.7, 0.0, SamplingOrder::vllm},
                                                   {40, 0.9, 0.02, SamplingOrder::transformers},
                                                   {0, 0.9, 0.1, SamplingOrder::llama_cpp},
                                                   {30, 0.5, 0.0, SamplingOrder::llama_cpp}})
    for (const double temperature : {0.0, 0.8, 3.0}) {
      Request request{.prompt = prompt_of(20, requests_.size()), .max_new_tokens = kNewTokens};
      request.sampling = {.temperature = temperature,
                          .top_k = top_k,
                          .top_p = top_p,
                          .min_p = min_p,
                          .seed = requests_.size(),
                          .order = order};
      request.ignore_end = true;
      requests_.push_back(request);
    }
  requests_[1].sampling.repetition_penalty = 1.3;
  requests_[2].sampling.num_logprobs = 2;
  const auto engine = engine_of(*model_, {.cache_dtype = GetParam().cache_dtype,
                                          .k_dtype = GetParam().codes,
                                          .v_dtype = GetParam().codes,
                                          .num_pages = 400});
  Answers answers;
  for (const Request& request : requests_) ASSERT_TRUE(engine->add(request).ok());
  ASSERT_FALSE(engine->run());
  poll_all(*engine, answers);
  for (const auto& [key, answer] : answers)
    EXPECT_EQ(answer.tokens, expected(requests_[static_cast<std::size_t>(key.first - 1)]).tokens)
        << "request " << key.first;
}

// Random options, some with a grammar, some from which no token can be drawn; or those alone that a
// GPU draws without the host, a step behind.
enum class DrawnBy { host_or_gpu, gpu };
inline std::vector<Request> requests_of_any_options(const LanguageModel& model, DrawnBy by) {
  const auto vocabulary = std::make_shared<const text::VocabularyTrie>(model.tokenizer);
  const auto vocab_size = static_cast<std::int32_t>(model.decoder->config.vocab_size);
  testing::Random random(11);
  const auto pick = [&](std::initializer_list<double> values) {
    return values.begin()[random.between(0, std::ssize(values) - 1)];
  };
  std::vector<Request> all;
  for (std::size_t i = 0; i < 90; ++i) {
    Request request{.prompt = prompt_of(i % 40 + 1, i), .max_new_tokens = 12};
    SamplingOptions& o = request.sampling;
    o = {.temperature = pick({0, 0.7, 1, 3}),
         .top_k = static_cast<std::int64_t>(pick({0, 0, 20})),
         .top_p = pick({1, 1, 0.9}),
         .repetition_penalty = pick({1, 1, 1.3}),
         .presence_penalty = pick({0, 0, 0.5}),
         .frequency_penalty = pick({0, 0, -0.2}),
         .seed = i,
         .order = static_cast<SamplingOrder>(random.between(0, 2)),
         .logprobs_mode = i % 3 == 0 ? LogprobsMode::processed : LogprobsMode::raw};
    if (i % 2 == 0) o.num_logprobs = static_cast<int>(pick({0, 1, 5, 20}));
    if (by == DrawnBy::gpu) {
      o.top_k = 0, o.top_p = 1;
      if (o.num_logprobs) o.num_logprobs = 0;
    }
    if (i % 4 == 1) o.logit_bias = {{7, 2.0f}, {100, -1.5f}, {7, 0.25f}};
    if (i % 3 == 2) {
      const char* const patterns[] = {"[a-z]{3,12}", "(true|false), [0-9]{1,5}!", "x*y?z{2,6}"};
      request.grammar =
          text::Grammar::from_regex(patterns[random.between(0, 2)], vocabulary).value();
    } else {
      request.ignore_end = true;
    }
    if (i % 30 == 16)
      for (std::int32_t token = 0; token < vocab_size; ++token)
        o.logit_bias.push_back({token, -std::numeric_limits<float>::infinity()});
    all.push_back(request);
  }
  return all;
}

// Each alone, with logits on the host; then all of them together, drawn on the device.
inline void Bits::expect_host_draws(const std::vector<Request>& wanted) {
  EngineOptions options{.cache_dtype = GetParam().cache_dtype,
                        .k_dtype = GetParam().codes,
                        .v_dtype = GetParam().codes,
                        .num_pages = 400};
  EngineOptions of_host = options;
  of_host.on_logits = [](std::int64_t, std::int64_t, std::span<const float>) -> Status {
    return std::nullopt;
  };
  Answers alone, together;
  const auto host = engine_of(*model_, of_host), engine = engine_of(*model_, options);
  for (const Request& request : wanted) {
    ASSERT_TRUE(host->add(request).ok());
    ASSERT_FALSE(host->run());
    poll_all(*host, alone);
    ASSERT_TRUE(engine->add(request).ok());
  }
  ASSERT_FALSE(engine->run());
  poll_all(*engine, together);
  ASSERT_EQ(alone.size(), wanted.size());
  ASSERT_EQ(together.size(), wanted.size());
  int num_failed = 0;
  for (const auto& [key, answer] : together) {
    const Answer& good = alone.at(key);
    EXPECT_EQ(answer.tokens, good.tokens) << "request " << key.first;
    EXPECT_EQ(answer.logprobs, good.logprobs) << "request " << key.first;
    EXPECT_EQ(answer.top_logprobs, good.top_logprobs) << "request " << key.first;
    EXPECT_EQ(answer.text, good.text) << "request " << key.first;
    EXPECT_EQ(answer.finish, good.finish) << "request " << key.first;
    EXPECT_EQ(answer.error, good.error) << "request " << key.first;
    num_failed += answer.finish == FinishReason::error;
  }
  EXPECT_EQ(num_failed, 3);
}

TEST_P(Bits, TokensOfAnyOptionsAreThoseThatTheHostDraws) {
  expect_host_draws(requests_of_any_options(*model_, DrawnBy::host_or_gpu));
}

TEST_P(Bits, TokensOfMasksAndPenaltiesAreThoseThatTheHostDraws) {
  expect_host_draws(requests_of_any_options(*model_, DrawnBy::gpu));
}

// A sample that ends with a token may have been computed further; its pages go to others at once.
TEST_P(Bits, EndWithTheTokensOfSessions) {
  expect_sessions();
  const std::int64_t page_size = whole_page_size(4, GetParam().codes, {});
  const auto engine = engine_of(*model_, {.max_num_seqs = 7,
                                          .cache_dtype = GetParam().cache_dtype,
                                          .k_dtype = GetParam().codes,
                                          .v_dtype = GetParam().codes,
                                          .page_size = page_size,
                                          .num_pages = 400 / page_size});
  std::vector<Tokens> wanted;
  std::vector<std::int64_t> aborted;
  for (int round = 0; round < 3; ++round)
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      Request request = requests_[i];
      Tokens tokens = expected_[i].tokens;
      request.stop_tokens = {tokens[(i + 5 * static_cast<std::size_t>(round)) % tokens.size()]};
      tokens.erase(std::ranges::find(tokens, request.stop_tokens[0]) + 1, tokens.end());
      wanted.push_back(tokens);
      const std::int64_t id = engine->add(request).value();
      ASSERT_EQ(id, std::ssize(wanted));
      if (i % 5 == 4) aborted.push_back(id);
    }
  Answers answers;
  for (std::size_t step = 0;; ++step) {
    if (step % 9 == 8 && step / 9 < aborted.size()) {
      ASSERT_FALSE(engine->abort(aborted[step / 9]));
    }
    if (!engine->step().value()) break;
    poll_all(*engine, answers);
  }
  ASSERT_EQ(std::ssize(answers), std::ssize(wanted));
  int num_stopped = 0;
  for (const auto& [key, answer] : answers) {
    Tokens tokens = wanted[static_cast<std::size_t>(key.first - 1)];
    ASSERT_TRUE(answer.finish) << "request " << key.first;
    num_stopped += *answer.finish == FinishReason::stop;
    if (*answer.finish == FinishReason::aborted) {
      ASSERT_LE(answer.tokens.size(), tokens.size());
      tokens.resize(answer.tokens.size());
    }
    EXPECT_EQ(answer.tokens, tokens) << "request " << key.first;
  }
  EXPECT_GE(num_stopped, std::ssize(wanted) - std::ssize(aborted));
  EXPECT_EQ(engine->stats().num_free_pages, engine->stats().num_pages);
}

// With steps on their way.
TEST_P(Bits, DoNotDependOnAnEngineThatIsGone) {
  for (int num_steps = 1; num_steps < 6; ++num_steps) {
    const auto engine = engine_of(*model_, {.cache_dtype = GetParam().cache_dtype,
                                            .k_dtype = GetParam().codes,
                                            .v_dtype = GetParam().codes,
                                            .num_pages = 400});
    for (const Request& request : requests_) ASSERT_TRUE(engine->add(request).ok());
    for (int step = 0; step < num_steps; ++step) ASSERT_TRUE(engine->step().value());
  }
  expect_all({.num_pages = 400}, 1, "after others");
}

TEST_P(Bits, DoNotDependOnChunks) {
  int num_unfinished_chunks = 0;
  for (const std::int64_t budget : {135, 150, 200, 333}) {
    expect_all({.max_batch_tokens = budget,
                .max_num_seqs = 6,
                .num_pages = 400,
                .has_prefix_cache = false},
               1, "chunks");
    num_unfinished_chunks += num_unfinished_chunks_;
  }
  // With a KV head per head a chunk has 65 tokens: two of them exceed the context of 128.
  const model::Config& config = model_->decoder->config;
  EXPECT_EQ(num_unfinished_chunks > 0, config.num_heads > config.num_kv_heads);
}

TEST_P(Bits, DoNotDependOnPromptsBesideDecodes) {
  const model::Config& config = model_->decoder->config;
  const std::int64_t least = 2 * (64 / (config.num_heads / config.num_kv_heads) + 1) - 1;
  for (const std::int64_t prompt_tokens : {least, least + 7, std::int64_t{300}})
    expect_all({.max_prompt_tokens = prompt_tokens, .max_num_seqs = 6, .num_pages = 400}, 1,
               "prompts beside decodes");
}

TEST_P(Bits, DoNotDependOnPreemption) {
  for (const std::int64_t num_host_pages : {0, 20}) {
    expect_all({.max_prompt_tokens = 4096,  // prompts join at once, so that pages are missing soon
                .max_num_seqs = 20,
                .page_size = 8,
                .num_pages = 20,
                .num_host_pages = num_host_pages,
                .has_prefix_cache = false},
               1, "preempted");
    EXPECT_GT(stats_.sequences.num_preemptions, 4);  // fewer with large pages
  }
}

TEST_P(Bits, DoNotDependOnThePrefixCache) {
  expect_all({.max_num_seqs = 1, .page_size = 4, .num_pages = 1000}, 1, "hits, one at a time");
  EXPECT_GT(stats_.sequences.num_cached_tokens, 0);
  expect_all({.max_batch_tokens = 200, .max_num_seqs = 8, .page_size = 4, .num_pages = 1000}, 2,
             "hits");
  EXPECT_GT(stats_.sequences.num_cached_tokens, 200);
  expect_all({.max_batch_tokens = 200, .max_num_seqs = 20, .page_size = 4, .num_pages = 40}, 2,
             "hits of preempted sequences");
  EXPECT_GT(stats_.sequences.num_preemptions, 5);
}

TEST_P(Bits, DoNotDependOnThePageSize) {
  for (const std::int64_t page_size : {1, 7, 16, 128})
    expect_all({.page_size = page_size, .num_pages = 4096 / page_size}, 1, "pages");
}

}  // namespace headrace::engine
