// Beam search, compared with a naive one that computes every beam anew and sorts all candidates.
#include "engine/beam_search.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>
#include <tuple>

#include "base/math.h"
#include "engine/model_fixture.h"

namespace headrace::engine {
namespace {

using Tokens = std::vector<std::int32_t>;

const std::string kFolder = std::string(HEADRACE_GOLDEN_DIR) + "/tiny/";
constexpr std::int64_t kMaxTokens = 24;

class BeamSearch : public ::testing::Test {
 protected:
  Session make_session(SessionOptions options) {
    options.max_tokens = kMaxTokens;
    options.cache_dtype = DType::f32;
    Result<Session> session = Session::make(model_, options);
    EXPECT_TRUE(session.ok());
    EXPECT_FALSE(session.value().append(prompt_, nullptr));
    return std::move(session.value());
  }

  // Log-probabilities of the token after the prompt and `tokens`.
  std::vector<double> logprobs_after(const Tokens& tokens) {
    Session session = make_session({});
    for (const std::int32_t& token : tokens) EXPECT_FALSE(session.append({&token, 1}, nullptr));
    const float* logits = session.logits();
    double sum = 0;
    for (std::int64_t i = 0; i < vocab_size(); ++i) sum += std::exp(static_cast<double>(logits[i]));
    std::vector<double> logprobs;
    for (std::int64_t i = 0; i < vocab_size(); ++i)
      logprobs.push_back(static_cast<double>(logits[i]) - std::log(sum));
    return logprobs;
  }

  // Of all tokens but the one that ended it; with ignore_end none did.
  std::string text_of(const Completion& completion, std::size_t first = 0) const {
    std::span<const std::int32_t> tokens = completion.tokens;
    if (completion.finish == Finish::end) tokens = tokens.first(tokens.size() - 1);
    return model_.tokenizer.decode(tokens.subspan(first), false).value();
  }
  bool has_text_past_an_end(const Completion& completion) const {
    if (completion.finish == Finish::end) return false;
    const auto& tokens = completion.tokens;
    const auto end = std::ranges::find_first_of(tokens, model_.tokenizer.end_tokens());
    return !text_of(completion, static_cast<std::size_t>(end - tokens.begin())).empty();
  }

  std::int64_t vocab_size() const { return model_.decoder->config.vocab_size; }
  std::vector<Completion> naive(const BeamOptions& options);
  void expect_naive(const BeamOptions& options, std::int64_t page_size);

  LanguageModel model_ = load(kFolder + "tiny_llama3_f16.gguf", MatmulMode::exact);
  Sampler sampler_ = std::move(Sampler::make(model_.device->info()).value());
  Tokens prompt_ = {89, 271, 200, 103, 38, 103, 7};
  std::set<Finish> finishes_;
  std::set<std::size_t> lengths_;
  int num_continued_ends_ = 0;
};

std::vector<Completion> BeamSearch::naive(const BeamOptions& options) {
  using Candidate = std::tuple<double, std::int32_t, std::size_t>;  // -logprob, token, beam
  const auto width = static_cast<std::size_t>(options.beam_width);
  const std::set<std::int32_t> ends(model_.tokenizer.end_tokens().begin(),
                                    model_.tokenizer.end_tokens().end());
  std::vector<Completion> beams(1), finished;
  const auto finish = [&](Completion completion, Finish reason) {
    completion.finish = reason;
    completion.score =
        completion.logprob / std::pow(completion.tokens.size(), options.length_penalty);
    finished.push_back(completion);
    std::ranges::stable_sort(finished, std::greater<>(), &Completion::score);
    if (finished.size() > width) finished.pop_back();
  };
  for (std::int64_t length = 1;; ++length) {
    std::vector<Candidate> all;
    for (std::size_t b = 0; b < beams.size(); ++b) {
      const std::vector<double> logprobs = logprobs_after(beams[b].tokens);
      for (std::size_t t = 0; t < logprobs.size(); ++t)
        all.emplace_back(-(beams[b].logprob + logprobs[t]), static_cast<std::int32_t>(t), b);
    }
    std::ranges::sort(all);
    std::vector<Completion> next;
    for (std::size_t rank = 0; next.size() < width && rank < all.size(); ++rank) {
      const auto& [cost, token, beam] = all[rank];
      Completion longer = beams[beam];
      longer.tokens.push_back(token);
      longer.logprob = -cost;
      if (!ends.contains(token) || options.ignore_end)
        next.push_back(longer);
      else if (rank < width)
        finish(longer, Finish::end);
    }
    beams = next;
    if (length == options.max_new_tokens ||
        static_cast<std::int64_t>(prompt_.size()) + length > kMaxTokens) {
      for (const Completion& beam : beams) finish(beam, Finish::length);
      return finished;
    }
    if (beams.empty()) return finished;
    const double best = beams[0].logprob / std::pow(length, options.length_penalty);
    if (finished.size() == width && best <= finished.back().score) return finished;
  }
}

void BeamSearch::expect_naive(const BeamOptions& options, std::int64_t page_size) {
  SCOPED_TRACE(format_text("width {}, penalty {}, limit {}, pages of {}", options.beam_width,
                           options.length_penalty, options.max_new_tokens, page_size));
  // As many pages as the search can need, and no more.
  const auto num_prompt = static_cast<std::int64_t>(prompt_.size());
  const std::int64_t most = options.max_new_tokens == 0
                                ? kMaxTokens
                                : std::min(kMaxTokens, num_prompt + options.max_new_tokens - 1);
  const std::int64_t own = ceil_div(most, page_size) - num_prompt / page_size;
  const std::int64_t num_pages = std::max(
      ceil_div(num_prompt, page_size) + options.beam_width * own, ceil_div(kMaxTokens, page_size));
  Session session = make_session({.page_size = page_size, .num_pages = num_pages});
  const std::int64_t num_used = session.cache().stats().num_used_pages;
  const auto found = beam_search(session, model_.tokenizer, options, sampler_);
  ASSERT_TRUE(found.ok()) << found.failure().message;
  const std::vector<Completion> expected = naive(options);
  ASSERT_EQ(found.value().size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const Completion& completion = found.value()[i];
    EXPECT_EQ(completion.tokens, expected[i].tokens) << i;
    EXPECT_EQ(completion.finish, expected[i].finish);
    EXPECT_EQ(completion.text, text_of(expected[i]));
    // Each log-probability is a float: up to 2^-24 of it, which is below 16.
    EXPECT_NEAR(completion.logprob, expected[i].logprob, kMaxTokens * 16 * 0x1p-23);
    EXPECT_NEAR(completion.score, expected[i].score, kMaxTokens * 16 * 0x1p-23);
    finishes_.insert(completion.finish);
    num_continued_ends_ += has_text_past_an_end(completion);
    lengths_.insert(completion.tokens.size());
  }
  EXPECT_TRUE(std::ranges::equal(session.tokens(), prompt_));
  EXPECT_NE(session.logits(), nullptr);
  EXPECT_EQ(session.cache().stats().num_used_pages, num_used);
  EXPECT_EQ(session.cache().stats().num_sequences, 1);
}

TEST_F(BeamSearch, FindsWhatANaiveSearchFinds) {
  for (const std::int64_t width : {1, 2, 5, 16})
    for (const double penalty : {0.0, 0.5, 1.0, 3.0})
      for (const std::int64_t limit : {1, 6, 0})
        expect_naive({.beam_width = width, .length_penalty = penalty, .max_new_tokens = limit},
                     limit == 6 ? 1 : 5);
  // Searches so wide that an end token is among the first candidates behind some prompts.
  for (std::int32_t last = 0; last < 288; last += 24) {
    prompt_.back() = last;
    for (const bool ignore_end : {false, true})
      expect_naive({.beam_width = 100,
                    .length_penalty = 0.25,
                    .max_new_tokens = 3,
                    .ignore_end = ignore_end},
                   3);
  }
  // So wide that some beams continue past an end token, and so does their text.
  for (std::int32_t last = 0; last < 288; last += 24) {
    prompt_.back() = last;
    expect_naive({.beam_width = 288, .max_new_tokens = 2, .ignore_end = true}, 3);
  }
  EXPECT_GT(num_continued_ends_, 0);
  for (const std::int64_t page_size : {7, 16, 4096})
    expect_naive({.beam_width = 3, .max_new_tokens = 8, .ignore_end = true}, page_size);
  EXPECT_EQ(finishes_, (std::set{Finish::end, Finish::length}));
  EXPECT_GE(lengths_.size(), 4u);
}

// Of two end tokens the first makes room for the other one, which ends no beam from the rank
// beam_width on.
TEST_F(BeamSearch, AnEndTokenEndsABeamAmongTheFirstCandidatesAlone) {
  ASSERT_EQ(model_.tokenizer.end_tokens().size(), 2u);
  int num_prompts = 0;
  for (std::int32_t last = 0; last < 288 && num_prompts < 4; ++last) {
    prompt_.back() = last;
    const std::vector<double> logprobs = logprobs_after({});
    std::int64_t rank = 0;  // of the less likely end token
    for (const std::int32_t end : model_.tokenizer.end_tokens())
      rank = std::max(rank, std::ranges::count_if(logprobs, [&](double logprob) {
                        return logprob > logprobs[static_cast<std::size_t>(end)];
                      }));
    if (rank > 60) continue;
    ++num_prompts;
    for (const std::int64_t width : {rank - 1, rank, rank + 1})
      for (const double penalty : {0.0, 1.0})
        expect_naive({.beam_width = width, .length_penalty = penalty, .max_new_tokens = 2}, 5);
  }
  EXPECT_GT(num_prompts, 0);
}

// All logits are 0: every candidate of a step is as likely as every other.
TEST_F(BeamSearch, TiesGoToTheLowestTokenThenTheLowestBeam) {
  Buffer& norm = model_.decoder->output_norm;
  std::memset(norm.data(), 0, norm.bytes());
  for (const std::int64_t width : {1, 3, 288})
    expect_naive({.beam_width = width, .max_new_tokens = 4}, 4);
}

TEST_F(BeamSearch, OfWidth1IsGreedy) {
  Session session = make_session({.num_pages = 5}), greedy = make_session({});
  const auto beams =
      beam_search(session, model_.tokenizer, {.beam_width = 1, .max_new_tokens = 12}, sampler_);
  ASSERT_EQ(beams.value().size(), 1u);
  GenerationOptions options;
  options.max_new_tokens = 12;
  options.sampling.temperature = 0;
  std::string text;
  options.on_text = [&](std::string_view piece) -> Result<bool> {
    text += piece;
    return true;
  };
  const Generation generation = generate(greedy, model_.tokenizer, options, sampler_).value();
  EXPECT_EQ(beams.value()[0].text, text);
  EXPECT_EQ(beams.value()[0].finish, generation.finish);
  EXPECT_EQ(static_cast<std::int64_t>(beams.value()[0].tokens.size()), generation.num_tokens);
}

TEST_F(BeamSearch, BadValuesAndMissingPagesAreRefusedAndChangeNothing) {
  Session session = make_session({.page_size = 4});  // 6 pages, 2 of them used
  const auto expect_refused = [&](const BeamOptions& options, ErrorCode code,
                                  const std::string& text) {
    const auto found = beam_search(session, model_.tokenizer, options, sampler_);
    ASSERT_FALSE(found.ok());
    EXPECT_EQ(found.failure().code, code);
    EXPECT_EQ(found.failure().message, text);
    EXPECT_TRUE(std::ranges::equal(session.tokens(), prompt_));
    EXPECT_NE(session.logits(), nullptr);
    EXPECT_EQ(session.cache().stats().num_used_pages, 2);
  };
  for (const std::int64_t width : {0, -1, 289})
    expect_refused({.beam_width = width}, ErrorCode::invalid_argument,
                   format_text("beam_width={}: must be 1 to 288 for a vocabulary of 288 tokens; "
                               "pass a width in that range",
                               width));
  for (const double penalty : {-0.5, 11.0})
    expect_refused(
        {.length_penalty = penalty}, ErrorCode::invalid_argument,
        format_text(
            "length_penalty={}: must be 0 to 10; pass 1 to rank by the mean log-probability",
            penalty));
  EXPECT_FALSE(
      beam_search(session, model_.tokenizer, {.length_penalty = std::nan("")}, sampler_).ok());
  for (const double penalty : {0.0, 10.0})  // the limits are good values
    EXPECT_TRUE(beam_search(session, model_.tokenizer,
                            {.beam_width = 1, .length_penalty = penalty, .max_new_tokens = 1},
                            sampler_)
                    .ok());
  expect_refused({.max_new_tokens = -1}, ErrorCode::invalid_argument,
                 "max_new_tokens=-1: must not be negative; pass 0 for no limit");
  expect_refused({.beam_width = 3, .max_new_tokens = 5}, ErrorCode::out_of_memory,
                 "beam_width=3: 4 tokens after 7 need 6 pages, and 4 of 6 are free; pass a smaller "
                 "max_new_tokens or create the session with num_pages=8");
  ASSERT_FALSE(session.truncate(0));
  EXPECT_EQ(
      beam_search(session, model_.tokenizer, {.max_new_tokens = 1}, sampler_).failure().message,
      "session: there are no logits; append tokens first");
}

}  // namespace
}  // namespace headrace::engine
