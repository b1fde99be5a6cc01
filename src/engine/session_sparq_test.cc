// Sessions whose decode is SparQ attention, on tiny models.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "engine/beam_search.h"
#include "engine/generate.h"
#include "engine/model_fixture.h"
#include "engine/session.h"

namespace headrace::engine {
namespace {

using Tokens = std::vector<std::int32_t>;

const std::string kFolder = std::string(HEADRACE_GOLDEN_DIR) + "/tiny/";

// With grouped heads, and without: then values have sums. Keys and values in f32 or as codes.
struct Form {
  const char* name;
  const char* model;
  std::optional<DType> k_dtype = {}, v_dtype = {};
};
class SessionSparq : public ::testing::TestWithParam<Form> {
 protected:
  static LanguageModel load_model(int num_threads = 2) {
    return load(kFolder + GetParam().model, MatmulMode::exact, num_threads);
  }
  static SessionOptions with_sparq(std::int64_t num_components, std::int64_t num_keys) {
    return {.max_tokens = 64,
            .cache_dtype = DType::f32,
            .k_dtype = GetParam().k_dtype,
            .v_dtype = GetParam().v_dtype,
            .sparq = {.num_components = num_components, .num_keys = num_keys}};
  }
};

constexpr std::int64_t kHeadDim = 16;  // of both models

Tokens some_tokens(std::int32_t count) {
  Tokens tokens;
  for (std::int32_t i = 0; i < count; ++i) tokens.push_back((37 * i * i + 11 * i + 5) % 288);
  return tokens;
}

Session make_session(const LanguageModel& model, const SessionOptions& options) {
  Result<Session> session = Session::make(model, options);
  if (!session.ok()) throw std::runtime_error(session.failure().message);
  return std::move(session.value());
}

void append(Session& session, const Tokens& tokens) {
  const Status failed = session.append(tokens, nullptr);
  ASSERT_FALSE(failed) << failed->message;
}

// Tokens first to last, one at a time; their logits.
std::vector<float> decode(Session& session, const Tokens& tokens, std::size_t first,
                          std::size_t last) {
  std::vector<float> logits;
  const std::int64_t vocab_size = session.decoder().config.vocab_size;
  for (std::size_t i = first; i < last; ++i) {
    append(session, {tokens[i]});
    logits.insert(logits.end(), session.logits(), session.logits() + vocab_size);
  }
  return logits;
}

// A prompt, then a decode of 20.
std::vector<float> decoded(const LanguageModel& model, const SessionOptions& options,
                           std::int32_t num_prompt = 30) {
  Session session = make_session(model, options);
  const Tokens tokens = some_tokens(num_prompt + 20);
  append(session, Tokens(tokens.begin(), tokens.begin() + num_prompt));
  return decode(session, tokens, static_cast<std::size_t>(num_prompt), tokens.size());
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return largest;
}

TEST_P(SessionSparq, IsDenseWithNoMoreKeysThanItReads) {
  const LanguageModel model = load_model();
  const std::vector<float> dense = decoded(model, with_sparq(0, 0));
  EXPECT_EQ(decoded(model, with_sparq(kHeadDim, 50)), dense);
  EXPECT_EQ(decoded(model, with_sparq(1, 1000)), dense);
  // The step with 50 keys is the last one.
  const std::vector<float> one_less = decoded(model, with_sparq(kHeadDim, 49));
  const std::size_t vocab_size = dense.size() / 20;
  EXPECT_TRUE(std::equal(dense.begin(), dense.end() - static_cast<std::ptrdiff_t>(vocab_size),
                         one_less.begin()));
  EXPECT_NE(one_less, dense);
  // With all components the key that is left out is the one with the least weight.
  EXPECT_LT(largest_difference(one_less, dense),
            largest_difference(decoded(model, with_sparq(kHeadDim, 25)), dense));
}

TEST_P(SessionSparq, IsFiniteAndNearerToDenseTheMoreItReads) {
  const LanguageModel model = load_model();
  const std::vector<float> dense = decoded(model, with_sparq(0, 0));
  const std::vector<float> few = decoded(model, with_sparq(2, 4));
  const std::vector<float> many = decoded(model, with_sparq(kHeadDim, 28));
  for (const float logit : few) ASSERT_TRUE(std::isfinite(logit));
  EXPECT_NE(few, dense);
  EXPECT_NE(many, dense);
  EXPECT_LT(largest_difference(many, dense), largest_difference(few, dense) / 2);
}

TEST_P(SessionSparq, BitsDependOnNeitherThreadsNorPages) {
  const LanguageModel model = load_model();
  const std::vector<float> expected = decoded(model, with_sparq(4, 8));
  EXPECT_EQ(decoded(model, with_sparq(4, 8)), expected);
  EXPECT_EQ(decoded(load_model(1), with_sparq(4, 8)), expected);
  for (const std::int64_t page_size : {1, 7, 64}) {
    SessionOptions options = with_sparq(4, 8);
    options.page_size = page_size;
    EXPECT_EQ(decoded(model, options), expected) << page_size;
  }
}

// Chunks that are long enough for the same path of dense attention.
TEST_P(SessionSparq, BitsDoNotDependOnChunksOfThePrompt) {
  LanguageModel model = load_model();
  model.decoder->config.context_length = 200;
  SessionOptions whole = with_sparq(4, 8);
  whole.max_tokens = 200;
  SessionOptions chunks = whole;
  chunks.batch_tokens = 75;
  EXPECT_EQ(decoded(model, chunks, 150), decoded(model, whole, 150));
}

// Its last chunk has one token.
TEST_P(SessionSparq, EveryTokenOfAPromptIsDense) {
  const LanguageModel model = load_model();
  const Tokens tokens = some_tokens(30);
  const auto logits_of = [&](SessionOptions options) {
    options.batch_tokens = 29;
    Session session = make_session(model, options);
    append(session, tokens);
    return std::vector<float>(session.logits(),
                              session.logits() + model.decoder->config.vocab_size);
  };
  EXPECT_EQ(logits_of(with_sparq(4, 8)), logits_of(with_sparq(0, 0)));
}

TEST_P(SessionSparq, TruncatedTokensLeaveNoTrace) {
  const LanguageModel model = load_model();
  const Tokens tokens = some_tokens(50), others(30, 7);
  Session expected_session = make_session(model, with_sparq(4, 8));
  append(expected_session, Tokens(tokens.begin(), tokens.begin() + 10));
  const std::vector<float> expected = decode(expected_session, tokens, 10, 50);
  for (const std::size_t kept : {std::size_t{10}, std::size_t{13}, std::size_t{16}}) {
    Session session = make_session(model, with_sparq(4, 8));
    append(session, Tokens(tokens.begin(), tokens.begin() + 10));
    std::vector<float> logits = decode(session, tokens, 10, kept);
    append(session, others);
    decode(session, others, 0, 5);
    ASSERT_FALSE(session.truncate(static_cast<std::int64_t>(kept)));
    const std::vector<float> behind = decode(session, tokens, kept, 50);
    logits.insert(logits.end(), behind.begin(), behind.end());
    EXPECT_EQ(logits, expected) << kept;
  }
}

// Samples and beams fork the sequence within a page.
TEST_P(SessionSparq, BranchesHaveTheBitsOfOneSequence) {
  const LanguageModel model = load_model();
  Sampler sampler = std::move(Sampler::make(model.device->info()).value());
  SessionOptions options = with_sparq(4, 8);
  options.num_pages = 20;
  Session session = make_session(model, options);
  append(session, some_tokens(20));
  GenerationOptions generation;
  generation.sampling.temperature = 3;
  generation.sampling.seed = 5;
  generation.max_new_tokens = 25;
  generation.ignore_end = true;
  const auto samples =
      generate_n(session, model.tokenizer, generation, 3, OnSampleText(), sampler).value();
  const auto continue_alone = [&] {
    Session alone = make_session(model, options);
    append(alone, some_tokens(20));
    const Generation result = generate(alone, model.tokenizer, generation, sampler).value();
    Tokens tokens(alone.tokens().begin() + 20, alone.tokens().end());
    EXPECT_EQ(result.num_tokens, 25);
    return tokens;
  };
  for (const Completion& sample : samples) {
    Tokens tokens = sample.tokens;
    tokens.pop_back();  // nothing follows it, so a session does not hold it
    EXPECT_EQ(tokens, continue_alone());
    ++generation.sampling.seed;
  }
  generation.sampling.temperature = 0;
  Tokens beam = beam_search(session, model.tokenizer,
                            {.beam_width = 1, .max_new_tokens = 25, .ignore_end = true}, sampler)
                    .value()
                    .front()
                    .tokens;
  beam.pop_back();
  EXPECT_EQ(beam, continue_alone());
}

TEST_P(SessionSparq, WindowsStayDense) {
  LanguageModel model = load_model();
  model.decoder->config.window = 20;
  EXPECT_EQ(decoded(model, with_sparq(4, 8)), decoded(model, with_sparq(0, 0)));
}

TEST_P(SessionSparq, OptionsAreChecked) {
  const LanguageModel model = load_model();
  const auto message_of = [&](SessionOptions options) {
    const Result<Session> session = Session::make(model, options);
    return session.ok() ? "" : session.failure().message;
  };
  EXPECT_EQ(message_of(with_sparq(0, 8)),
            "sparq_components=0: must be 1 to 16, the head_dim of the model, with sparq_keys=8; "
            "pass such a number, or 0 for both");
  EXPECT_EQ(message_of(with_sparq(17, 8)).find("sparq_components=17: must be 1 to 16"), 0u);
  EXPECT_EQ(message_of(with_sparq(-1, 8)).find("sparq_components=-1: must be 1 to 16"), 0u);
  EXPECT_EQ(message_of(with_sparq(4, 0)),
            "sparq_keys=0: must be 1 or more with sparq_components=4; pass such a number, or 0 for "
            "both");
  EXPECT_EQ(message_of(with_sparq(4, -1)).find("sparq_keys=-1: must be 1 or more"), 0u);
}

constexpr const char* kGrouped = "tiny_llama3_f16.gguf";
constexpr const char* kUngrouped = "tiny_llama2_q4_0.gguf";
INSTANTIATE_TEST_SUITE_P(
    Heads, SessionSparq,
    ::testing::Values(Form{"Grouped", kGrouped}, Form{"Ungrouped", kUngrouped},
                      Form{"GroupedInt8", kGrouped, DType::i8, DType::i8},
                      Form{"UngroupedInt8", kUngrouped, DType::i8, DType::i8},
                      Form{"GroupedInt4", kGrouped, DType::i4x2, DType::f8e4m3},
                      Form{"UngroupedValues", kUngrouped, {}, DType::u4x2},
                      Form{"UngroupedKivi", kUngrouped, DType::u2x4, DType::u2x4}),
    [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace headrace::engine
