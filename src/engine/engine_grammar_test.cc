// Requests whose text must match a grammar, on a tiny model.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <regex>
#include <set>

#include "engine/engine.h"
#include "engine/generate.h"
#include "engine/model_fixture.h"
#include "tests/support/engine_fixture.h"

namespace headrace::engine {
namespace {

const std::string kFolder = std::string(HEADRACE_GOLDEN_DIR) + "/tiny/";

class GrammarRequests : public ::testing::Test {
 protected:
  std::shared_ptr<text::Grammar> regex(std::string_view text) const {
    auto made = text::Grammar::from_regex(text, vocabulary_);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.failure().message);
    return made.value();
  }
  Request request(std::string_view grammar, std::int64_t n = 1) const {
    Request request{.prompt = prompt_of(11, 3), .n = n};
    request.sampling = {.temperature = 5, .seed = 1000};
    request.grammar = regex(grammar);
    return request;
  }
  Answers run(const std::vector<Request>& requests, const EngineOptions& options = {}) const {
    const auto engine = engine_of(model_, options);
    for (const Request& request : requests) EXPECT_TRUE(engine->add(request).ok());
    EXPECT_FALSE(engine->run());
    Answers answers;
    poll_all(*engine, answers);
    return answers;
  }

  LanguageModel model_ = load(kFolder + "tiny_llama3_f16.gguf", MatmulMode::normal);
  text::Grammar::Vocabulary vocabulary_ =
      std::make_shared<const text::VocabularyTrie>(model_.tokenizer);
};

TEST_F(GrammarRequests, EverySampleMatches) {
  const std::string pattern = "[a-z]{3,5} is (true|false), [0-9]{1,4}( times)?!";
  const Answers answers = run({request(pattern, 100)});
  ASSERT_EQ(answers.size(), 100u);
  std::set<std::string> texts;
  for (const auto& [key, answer] : answers) {
    EXPECT_EQ(answer.finish, FinishReason::stop) << answer.error;
    EXPECT_TRUE(std::regex_match(answer.text, std::regex(pattern))) << answer.text;
    texts.insert(answer.text);
  }
  EXPECT_GT(texts.size(), 90u);
}

TEST_F(GrammarRequests, EndTokensAreDrawnWhereTheTextMayEnd) {
  Request ends = request("(ab)+");
  for (const text::TokenId token : model_.tokenizer.end_tokens())
    ends.sampling.logit_bias.push_back({token, 1000.0f});
  const Answer answer = run({ends}).at({1, 0});
  EXPECT_EQ(answer.text, "ab");
  EXPECT_EQ(answer.finish, FinishReason::stop);
  EXPECT_TRUE(std::ranges::binary_search(model_.tokenizer.end_tokens(), answer.tokens.back()));
}

TEST_F(GrammarRequests, ATextThatNothingCanFollowStopsWithoutAnEndToken) {
  const Answer answer = run({request("yes")}).at({1, 0});
  EXPECT_EQ(answer.text, "yes");
  EXPECT_EQ(model_.tokenizer.decode(answer.tokens).value(), "yes");
  EXPECT_EQ(answer.finish, FinishReason::stop);
}

// Where the last token that is allowed ends an answer, the answer has ended; and in a session.
TEST_F(GrammarRequests, AnAnswerThatEndsAtItsLengthHasEnded) {
  const Answer letters = run({request("[a-z]{20}")}).at({1, 0});
  Request by_grammar = request("[a-z]{3} is (true|false)"), by_stop = request("[a-z]{20}"),
          by_token = by_stop;
  by_stop.stop = {letters.text.substr(8, 3)};
  by_token.stop_tokens = {letters.tokens[5]};
  for (const Request& whole : {by_grammar, by_stop, by_token}) {
    const auto num_tokens = std::ssize(run({whole}).at({1, 0}).tokens);
    ASSERT_GT(num_tokens, 1);
    for (std::int64_t limit = 1; limit <= num_tokens + 1; ++limit) {
      SCOPED_TRACE(format_text("{} of {} tokens", limit, num_tokens));
      Request limited = whole;
      limited.max_new_tokens = limit;
      const bool has_ended = limit >= num_tokens;
      const Answer answer = run({limited}).at({1, 0});
      EXPECT_EQ(answer.finish, has_ended ? FinishReason::stop : FinishReason::length);
      EXPECT_EQ(std::ssize(answer.tokens), std::min<std::int64_t>(limit, num_tokens));
      if (!whole.stop_tokens.empty()) continue;
      Session session =
          std::move(Session::make(model_, {.max_tokens = 64, .num_pages = 16}).value());
      ASSERT_FALSE(session.append(whole.prompt, nullptr));
      Sampler sampler = std::move(Sampler::make(model_.host).value());
      const GenerationOptions options{.sampling = whole.sampling,
                                      .max_new_tokens = limit,
                                      .stop = whole.stop,
                                      .grammar = whole.grammar,
                                      .on_text = {}};
      const Generation same = generate(session, model_.tokenizer, options, sampler).value();
      EXPECT_EQ(same.finish == Finish::length, !has_ended);
    }
  }
}

TEST_F(GrammarRequests, LeaveOthersAndTheirLogprobsAlone) {
  Request plain = request("x");
  plain.grammar = nullptr;
  plain.max_new_tokens = 8;
  const Answers beside = run({plain, request("[0-9]{20}", 3)}, {.num_pages = 1000});
  const Answers alone = run({plain});
  EXPECT_EQ(beside.at({1, 0}).tokens, alone.at({1, 0}).tokens);
}

// Raw logprobs are of the model's logits: those of a request without a grammar.
TEST_F(GrammarRequests, ReportLogprobsOfTheUnmodifiedLogits) {
  Request masked = request("[a-f]"), plain = masked;
  plain.grammar = nullptr;
  plain.max_new_tokens = 1;
  masked.sampling.num_logprobs = plain.sampling.num_logprobs = 5;
  const auto first = [&](const Request& request) {
    const auto engine = engine_of(model_, {});
    EXPECT_TRUE(engine->add(request).ok());
    EXPECT_FALSE(engine->run());
    return engine->poll()->tokens.front();
  };
  const OutputToken a = first(masked), b = first(plain);
  ASSERT_EQ(a.top_logprobs.size(), 5u);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(a.top_logprobs[i].token, b.top_logprobs[i].token);
    EXPECT_EQ(a.top_logprobs[i].logprob, b.top_logprobs[i].logprob);
  }
  EXPECT_LT(a.logprob, 0);
}

TEST_F(GrammarRequests, ASessionGivesTheSame) {
  Request wanted = request("[a-z ]{10,20}\\.");
  Session session = std::move(Session::make(model_, {.max_tokens = 64, .num_pages = 16}).value());
  ASSERT_FALSE(session.append(wanted.prompt, nullptr));
  std::string text;
  Sampler sampler = std::move(Sampler::make(model_.host).value());
  GenerationOptions options{.sampling = wanted.sampling,
                            .stop = {},
                            .grammar = wanted.grammar,
                            .on_text = [&](std::string_view piece) -> Result<bool> {
                              text += piece;
                              return true;
                            }};
  const auto completions = generate_n(session, model_.tokenizer, options, 3, {}, sampler);
  ASSERT_TRUE(completions.ok());
  const Generation generation = generate(session, model_.tokenizer, options, sampler).value();
  EXPECT_EQ(generation.finish, Finish::end);
  wanted.n = 3;
  const Answers answers = run({wanted});
  EXPECT_EQ(text, answers.at({1, 0}).text);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_EQ(completions.value()[i].text, answers.at({1, static_cast<std::int64_t>(i)}).text);
}

TEST_F(GrammarRequests, RefuseWhatCannotBe) {
  const auto engine = engine_of(model_, {});
  Request ignores = request("a");
  ignores.ignore_end = true;
  Result<std::int64_t> refused = engine->add(ignores);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.failure().message.find("ignore_end=1: a text that matches a grammar"),
            std::string::npos);
}

// The sampler still sees NaN where the grammar forbids the token.
TEST_F(GrammarRequests, AForbiddenTokenHidesNoNan) {
  Sampler sampler = std::move(Sampler::make(model_.host).value());
  std::vector<float> logits(100, 1.0f);
  logits[70] = std::nanf("");
  const std::vector<std::uint64_t> mask = {1, 0};
  const Result<Sample> drawn = sampler.sample({.logits = logits, .mask = mask}, {});
  ASSERT_FALSE(drawn.ok());
  EXPECT_EQ(drawn.failure().code, ErrorCode::io_error);
}

}  // namespace
}  // namespace headrace::engine
