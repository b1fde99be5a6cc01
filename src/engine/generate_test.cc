// Parallel samples of one prompt.
#include "engine/generate.h"

#include <gtest/gtest.h>

#include <climits>
#include <set>

#include "base/math.h"
#include "engine/model_fixture.h"

namespace headrace::engine {
namespace {

const std::string kFolder = std::string(HEADRACE_GOLDEN_DIR) + "/tiny/";

const std::vector<std::int32_t> kPrompt = {89, 271, 200, 103, 38, 103, 7, 41, 12, 250, 3};

class Samples : public ::testing::Test {
 protected:
  Session make_session(SessionOptions options) {
    options.max_tokens = 48;
    Result<Session> session = Session::make(model_, options);
    EXPECT_TRUE(session.ok());
    EXPECT_FALSE(session.value().append(kPrompt, nullptr));
    return std::move(session.value());
  }

  // A run of one sequence.
  Completion single(const GenerationOptions& options, std::uint64_t seed) {
    Session session = make_session({});
    GenerationOptions own = options;
    own.sampling.seed = seed;
    Completion completion;
    own.on_text = [&](std::string_view text) -> Result<bool> {
      completion.text += text;
      return true;
    };
    const Generation generation = generate(session, model_.tokenizer, own, sampler_).value();
    completion.finish = generation.finish;
    // The tokens and their logprobs, again.
    EXPECT_FALSE(session.truncate(0));
    EXPECT_FALSE(session.append(kPrompt, nullptr));
    own.sampling.num_logprobs = 0;
    for (std::int64_t i = 0; i < generation.num_tokens; ++i) {
      const Sample sample = sample_next(session, own.sampling, own.sequence_id,
                                        static_cast<std::int64_t>(kPrompt.size()), sampler_)
                                .value();
      completion.tokens.push_back(sample.token);
      completion.logprob += static_cast<double>(sample.logprob);
      if (i + 1 == generation.num_tokens) break;
      EXPECT_FALSE(session.append({&sample.token, 1}, nullptr));
    }
    return completion;
  }

  LanguageModel model_ = load(kFolder + "tiny_llama3_f16.gguf", MatmulMode::normal);
  Sampler sampler_ = std::move(Sampler::make(model_.device->info()).value());
};

// Each kind of finish, and options that depend on prompt and output.
std::vector<GenerationOptions> generation_options() {
  std::vector<GenerationOptions> all(5);
  for (GenerationOptions& options : all) {
    options.sampling.temperature = 3;
    options.sampling.seed = 1000;
    options.sequence_id = 5;
    options.max_new_tokens = 20;
  }
  all[1].ignore_end = true;
  all[1].max_new_tokens = 0;
  all[2].sampling.repetition_penalty = 2;
  all[2].sampling.frequency_penalty = -3;
  all[3].stop = {"a", "e", "1"};
  all[4].sampling.seed = UINT64_MAX - 1;
  all[4].sampling.top_p = 0.9;
  all[4].sampling.temperature = 1;
  return all;
}

// Tokens, text and the bits of the logprobs are those of a run alone.
TEST_F(Samples, EachIsThatOfARunWithItsSeed) {
  std::set<Finish> finishes;
  for (const GenerationOptions& options : generation_options()) {
    for (const std::int64_t page_size : {1, 7, 16, 4096}) {
      Session session = make_session({.page_size = page_size, .num_pages = 9 * 48});
      const std::vector<float> logits(session.logits(), session.logits() + 288);
      const std::int64_t num_used = session.cache().stats().num_used_pages;
      std::vector<std::string> texts(8);
      const auto on_text = [&](std::int64_t i, std::string_view text) -> Result<bool> {
        texts[static_cast<std::size_t>(i)] += text;
        return true;
      };
      const auto samples =
          generate_n(session, model_.tokenizer, options, 8, on_text, sampler_).value();
      ASSERT_EQ(samples.size(), 8u);
      for (std::size_t i = 0; i < 8; ++i) {
        const Completion alone = single(options, options.sampling.seed + i);
        EXPECT_EQ(samples[i].tokens, alone.tokens) << i;
        EXPECT_EQ(samples[i].text, alone.text);
        EXPECT_EQ(texts[i], alone.text);
        EXPECT_EQ(samples[i].logprob, alone.logprob);
        EXPECT_EQ(samples[i].score, alone.logprob);
        EXPECT_EQ(samples[i].finish, alone.finish);
        finishes.insert(alone.finish);
      }
      // The session is as before.
      EXPECT_TRUE(std::ranges::equal(session.tokens(), kPrompt));
      EXPECT_EQ(std::vector<float>(session.logits(), session.logits() + 288), logits);
      EXPECT_EQ(session.cache().stats().num_used_pages, num_used);
      EXPECT_EQ(session.cache().stats().num_sequences, 1);
    }
  }
  EXPECT_EQ(finishes, (std::set{Finish::end, Finish::stop, Finish::length}));
}

// A callback ends its own sample only.
TEST_F(Samples, EndOneByOne) {
  GenerationOptions options = generation_options()[1];
  options.max_new_tokens = 10;
  Session session = make_session({.num_pages = 20});
  std::vector<int> calls(4);
  const auto on_text = [&](std::int64_t i, std::string_view) -> Result<bool> {
    return ++calls[static_cast<std::size_t>(i)] < 2 + i;
  };
  const auto samples = generate_n(session, model_.tokenizer, options, 4, on_text, sampler_).value();
  for (std::size_t i = 0; i < 4; ++i) {
    const Completion alone = single(options, options.sampling.seed + i);
    EXPECT_EQ(samples[i].finish, Finish::cancelled);
    EXPECT_EQ(samples[i].tokens,
              std::vector<std::int32_t>(alone.tokens.begin(),
                                        alone.tokens.begin() + static_cast<std::ptrdiff_t>(2 + i)));
  }
}

// Whichever call of the callback ends the generation, it is the last one: also the one that gives
// what a stop string could have begun with.
TEST_F(Samples, NothingFollowsACallThatEndsThem) {
  GenerationOptions options = generation_options()[0];
  options.ignore_end = true;
  options.max_new_tokens = 6;
  std::string whole;
  int num_calls = 0, last = INT_MAX;
  options.on_text = [&](std::string_view text) -> Result<bool> {
    whole += text;
    return ++num_calls < last;
  };
  const auto run = [&] {
    Session session = make_session({});
    num_calls = 0;
    return generate(session, model_.tokenizer, options, sampler_).value().finish;
  };
  EXPECT_EQ(run(), Finish::length);
  // The end of the text begins this stop string, so it is given when the generation has ended.
  options.stop = {whole.substr(whole.size() - 1) + "#"};
  EXPECT_EQ(run(), Finish::length);
  const int all = num_calls;
  for (last = 1; last < all; ++last) {
    run();
    EXPECT_EQ(num_calls, last);
  }
}

// n samples of a prompt of P tokens share its full pages. With k tokens each, they hold
// P / page_size + n * (pages of P + k - P / page_size).
TEST_F(Samples, ShareThePagesOfThePrompt) {
  const auto num_prompt = static_cast<std::int64_t>(kPrompt.size());
  for (const std::int64_t page_size : {1, 4, 11, 16}) {
    for (const std::int64_t n : {1, 3, 8}) {
      GenerationOptions options = generation_options()[1];
      options.max_new_tokens = 12;
      const std::int64_t shared = num_prompt / page_size;
      const std::int64_t most = n * (ceil_div(num_prompt + 11, page_size) - shared);
      const std::int64_t prompt_pages = ceil_div(num_prompt, page_size);
      const std::int64_t own_pages = ceil_div<std::int64_t>(48, page_size);
      Session session = make_session(
          {.page_size = page_size, .num_pages = std::max(own_pages, prompt_pages + most)});
      std::vector<std::int64_t> num_calls(static_cast<std::size_t>(n));
      const auto on_text = [&](std::int64_t i, std::string_view) -> Result<bool> {
        // A call for each token, and more of them behind the last one. The branches are of equal
        // length.
        const std::int64_t num_tokens = num_calls[static_cast<std::size_t>(i)]++;
        const std::int64_t length = num_prompt + std::min<std::int64_t>(num_tokens, 11);
        const std::int64_t own = n * (ceil_div(length, page_size) - shared);
        EXPECT_EQ(session.cache().stats().num_used_pages,
                  prompt_pages + (length > num_prompt ? own : 0));
        return true;
      };
      const auto samples = generate_n(session, model_.tokenizer, options, n, on_text, sampler_);
      ASSERT_TRUE(samples.ok()) << samples.failure().message;
      EXPECT_GE(*std::ranges::min_element(num_calls), 12);
      EXPECT_EQ(session.cache().stats().num_used_pages, prompt_pages);
    }
  }
}

TEST_F(Samples, BadValuesAndMissingPagesAreRefusedAndChangeNothing) {
  Session session = make_session({.page_size = 4});  // 12 pages, 3 of them used
  const auto expect_refused = [&](const GenerationOptions& options, std::int64_t n, ErrorCode code,
                                  const std::string& text) {
    const auto samples = generate_n(
        session, model_.tokenizer, options, n,
        [](std::int64_t, std::string_view) -> Result<bool> {
          ADD_FAILURE() << "called";
          return false;
        },
        sampler_);
    ASSERT_FALSE(samples.ok());
    EXPECT_EQ(samples.failure().code, code);
    EXPECT_EQ(samples.failure().message, text);
    EXPECT_EQ(session.tokens().size(), kPrompt.size());
    EXPECT_NE(session.logits(), nullptr);
    EXPECT_EQ(session.cache().stats().num_used_pages, 3);
  };
  const GenerationOptions options = generation_options()[0];
  for (const std::int64_t n : {0, -1, 1025})
    expect_refused(options, n, ErrorCode::invalid_argument,
                   format_text("n={}: must be 1 to 1024; pass fewer, or call again for more", n));
  GenerationOptions greedy = options;
  greedy.sampling.temperature = 0;
  expect_refused(
      greedy, 2, ErrorCode::invalid_argument,
      "n=2 with temperature=0: greedy samples are equal; pass a temperature above 0, or n=1");
  GenerationOptions empty_stop = options;
  empty_stop.stop = {""};
  EXPECT_FALSE(generate_n(session, model_.tokenizer, empty_stop, 1, {}, sampler_).ok());
  GenerationOptions bad = options;
  bad.sampling.top_p = 2;
  EXPECT_FALSE(generate_n(session, model_.tokenizer, bad, 1, {}, sampler_).ok());
  // 30 tokens are at most 8 pages, 2 of them shared: 6 of its own for each sample.
  expect_refused(options, 2, ErrorCode::out_of_memory,
                 "n=2: 19 tokens after 11 need 12 pages, and 9 of 12 are free; pass a smaller "
                 "max_new_tokens or create the session with num_pages=15");
  ASSERT_FALSE(session.truncate(0));
  const auto samples = generate_n(session, model_.tokenizer, options, 1, {}, sampler_);
  ASSERT_FALSE(samples.ok());
  EXPECT_EQ(samples.failure().message, "session: there are no logits; append tokens first");
}

// As many as a session of codes has recent pages for; more are refused before the first token.
TEST_F(Samples, WithCodesAreFewer) {
  GenerationOptions options = generation_options()[0];
  options.ignore_end = true;
  options.max_new_tokens = 30;
  for (const DType codes : {DType::i8, DType::u2x4}) {
    Session session = make_session({.k_dtype = codes, .v_dtype = codes, .num_pages = 200});
    const auto samples = generate_n(session, model_.tokenizer, options, 32, {}, sampler_);
    EXPECT_TRUE(samples.ok()) << samples.failure().message;
    const auto more = generate_n(session, model_.tokenizer, options, 33, {}, sampler_);
    ASSERT_FALSE(more.ok());
    EXPECT_EQ(more.failure().message,
              "n=33: must be 1 to 32 with quantised keys or values; pass fewer, or call again for "
              "more");
  }
}

}  // namespace
}  // namespace headrace::engine
