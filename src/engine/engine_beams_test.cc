// Beam searches of an engine, beside those of a session: alone, in a crowd, and where pages or
// seats are few, so that they are preempted.
#include <gtest/gtest.h>

#include "engine/beam_search.h"
#include "engine/model_fixture.h"
#include "tests/support/engine_fixture.h"

namespace headrace::engine {
namespace {

constexpr std::int64_t kMaxTokens = 96;

struct Search {
  Tokens prompt;
  std::int64_t width, max_new_tokens;
  double length_penalty = 1;
  bool ignore_end = false;

  Request request() const {
    return {.prompt = prompt,
            .beam_width = width,
            .length_penalty = length_penalty,
            .max_new_tokens = max_new_tokens,
            .ignore_end = ignore_end};
  }
};

// Short prompts, and ones that are computed in chunks; equal prompts, which share cached pages.
const std::vector<Search> kSearches = {
    {prompt_of(7, 1), 4, 12},           {prompt_of(70, 2), 3, 20, 0, true},
    {prompt_of(11, 3), 1, 9},           {prompt_of(7, 1), 6, 0, 2},
    {prompt_of(70, 2), 5, 0, 1, true},  {prompt_of(33, 4), 2, 30, 0.5},
    {prompt_of(kMaxTokens, 5), 3, 0},   {prompt_of(kMaxTokens - 1, 5), 3, 0, 1, true},
    {prompt_of(16, 6), 8, 17, 1, true},
};

class EngineBeams : public ::testing::Test {
 protected:
  std::vector<Completion> expected(const Search& search) {
    Session session =
        std::move(Session::make(model_, {.max_tokens = kMaxTokens, .num_pages = 256}).value());
    EXPECT_FALSE(session.append(search.prompt, nullptr));
    return beam_search(session, model_.tokenizer,
                       {.beam_width = search.width,
                        .length_penalty = search.length_penalty,
                        .max_new_tokens = search.max_new_tokens,
                        .ignore_end = search.ignore_end},
                       sampler_)
        .value();
  }

  void expect_search(const Answers& answers, std::int64_t id, const Search& search) {
    const std::vector<Completion> all = expected(search);
    ASSERT_EQ(std::ssize(all), search.width);
    for (std::int64_t i = 0; i < search.width; ++i) {
      const Completion& good = all[static_cast<std::size_t>(i)];
      const Answer& answer = answers.at({id, i});
      EXPECT_EQ(answer.tokens, good.tokens) << id << ", completion " << i;
      EXPECT_EQ(answer.text, good.text) << id;
      EXPECT_EQ(answer.finish,
                good.finish == Finish::length ? FinishReason::length : FinishReason::stop);
      EXPECT_EQ(answer.error, "");
    }
  }

  LanguageModel model_ =
      load(std::string(HEADRACE_GOLDEN_DIR) + "/tiny/tiny_llama3_f16.gguf", MatmulMode::normal);
  Sampler sampler_ = std::move(Sampler::make(model_.host).value());
};

TEST_F(EngineBeams, FindWhatASessionFinds) {
  for (const Search& search : kSearches) {
    const auto engine = engine_of(model_, {.max_tokens = kMaxTokens, .num_pages = 64});
    ASSERT_TRUE(engine->add(search.request()).ok());
    ASSERT_FALSE(engine->run());
    Answers answers;
    poll_all(*engine, answers);
    expect_search(answers, 1, search);
    EXPECT_EQ(engine->stats().num_free_pages, engine->stats().num_pages);
  }
}

TEST_F(EngineBeams, ReportTheLogprobsOfTheirTokens) {
  const auto engine = engine_of(model_, {.max_tokens = kMaxTokens, .num_pages = 64});
  ASSERT_TRUE(engine->add(kSearches[0].request()).ok());
  ASSERT_FALSE(engine->run());
  const std::vector<Completion> all = expected(kSearches[0]);
  for (const Completion& good : all) {
    const Output output = engine->poll().value();
    double sum = 0;
    for (const OutputToken& token : output.tokens) sum += static_cast<double>(token.logprob);
    EXPECT_NEAR(sum, good.logprob, 1e-9);
    EXPECT_TRUE(output.num_logprobs);
  }
}

// The crowd and the order of preemptions differ from run to run of the sizes; no token does.
TEST_F(EngineBeams, DependOnNothingBesideThem) {
  std::int64_t num_preemptions = 0, num_runs = 0;
  for (const std::int64_t max_num_seqs : {8, 11, 32})
    for (const std::int64_t num_pages : {52, 60, 200})
      for (const bool has_cache : {true, false}) {
        const auto engine = engine_of(model_, {.max_tokens = kMaxTokens,
                                               .max_batch_tokens = 200,
                                               .max_num_seqs = max_num_seqs,
                                               .num_pages = num_pages,
                                               .num_host_pages = num_runs++ % 3 == 0 ? 20 : 0,
                                               .has_prefix_cache = has_cache});
        std::vector<std::int64_t> searches, others;
        const Request sampled{.prompt = prompt_of(40, 9), .n = 2, .max_new_tokens = 40};
        Request warm = sampled;
        warm.sampling.temperature = 1;
        for (std::size_t i = 0; i < kSearches.size(); ++i) {
          Request request = kSearches[i].request();
          request.priority = static_cast<std::int64_t>(i) % 2;
          searches.push_back(engine->add(request).value());
          others.push_back(engine->add(warm).value());
        }
        ASSERT_FALSE(engine->run());
        Answers answers;
        poll_all(*engine, answers);
        for (std::size_t i = 0; i < kSearches.size(); ++i) {
          expect_search(answers, searches[i], kSearches[i]);
          EXPECT_EQ(answers.at({others[i], 1}).tokens, answers.at({others[0], 1}).tokens);
        }
        num_preemptions += engine->stats().sequences.num_preemptions;
        EXPECT_EQ(engine->stats().num_free_pages, engine->stats().num_pages);
        EXPECT_EQ(engine->stats().num_requests, 0);
      }
  EXPECT_GT(num_preemptions, 50);
}

TEST_F(EngineBeams, EndWithTheirRequest) {
  int num_logits = 0;
  EngineOptions options{.max_tokens = kMaxTokens, .num_pages = 64};
  options.on_logits = [&](std::int64_t, std::int64_t, std::span<const float>) -> Status {
    if (++num_logits != 9) return std::nullopt;
    return Failure{ErrorCode::io_error, "logits are NaN"};
  };
  const auto engine = engine_of(model_, options);
  ASSERT_TRUE(engine->add(kSearches[0].request()).ok());  // ends with the ninth row of logits
  ASSERT_FALSE(engine->run());
  ASSERT_TRUE(engine->add(kSearches[4].request()).ok());
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(engine->step().value());
  ASSERT_FALSE(engine->abort(2));
  ASSERT_FALSE(engine->run());
  Answers answers;
  poll_all(*engine, answers);
  ASSERT_EQ(answers.size(), 9u);
  for (const auto& [key, answer] : answers) {
    EXPECT_EQ(answer.finish, key.first == 1 ? FinishReason::error : FinishReason::aborted);
    EXPECT_EQ(answer.error, key.first == 1 ? "logits are NaN" : "");
  }
  EXPECT_EQ(engine->stats().num_free_pages, engine->stats().num_pages);
}

TEST_F(EngineBeams, RefuseWhatTheyCannotSearch) {
  const auto engine =
      engine_of(model_, {.max_tokens = kMaxTokens, .max_num_seqs = 6, .num_pages = 20});
  const auto refusal = [&](auto change) {
    Request request{.prompt = prompt_of(10, 1), .beam_width = 3, .max_new_tokens = 20};
    change(request);
    const Result<std::int64_t> added = engine->add(request);
    return added.ok() ? "" : added.failure().message;
  };
  EXPECT_EQ(refusal([](Request&) {}), "");
  EXPECT_EQ(refusal([](Request& r) { r.sampling.num_logprobs = 0; }), "");
  const auto begins = [&](const char* text, auto change) {
    EXPECT_TRUE(refusal(change).starts_with(text)) << refusal(change);
  };
  begins("beam_width=-1: must be 1 to", [](Request& r) { r.beam_width = -1; });
  begins("beam_width=7: must be at most max_num_seqs=6", [](Request& r) { r.beam_width = 7; });
  begins("beam_width=4: the beams can need 24 pages", [](Request& r) {
    r.beam_width = 4;
    r.max_new_tokens = 0;
  });
  begins("length_penalty=-1", [](Request& r) { r.length_penalty = -1; });
  begins("beam_width=3 with n", [](Request& r) { r.n = 3; });
  begins("beam_width=3 with stop:", [](Request& r) { r.stop = {"x"}; });
  begins("beam_width=3 with stop_tokens", [](Request& r) { r.stop_tokens = {1}; });
  begins("beam_width=3 with num_logprobs", [](Request& r) { r.sampling.num_logprobs = 1; });
}

}  // namespace
}  // namespace headrace::engine
