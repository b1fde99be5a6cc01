// The engine on tiny models: what requests ask for, and errors, which stay with their request.
// engine_bits_test.cc compares bits.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "engine/generate.h"
#include "engine/model_fixture.h"
#include "runtime/device_wait.h"
#include "tests/support/engine_fixture.h"

namespace headrace::engine {
namespace {

using testing::Random;

const std::string kFolder = std::string(HEADRACE_GOLDEN_DIR) + "/tiny/";

Answer run_alone(const LanguageModel& model, const EngineOptions& options, const Request& request) {
  const auto engine = engine_of(model, options);
  EXPECT_TRUE(engine->add(request).ok());
  EXPECT_FALSE(engine->run());
  Answers answers;
  poll_all(*engine, answers);
  return answers.at({1, 0});
}

// ---- what a request asks for ----

class Engines : public ::testing::Test {
 protected:
  Request request(std::size_t length = 11, std::uint64_t seed = 3) const {
    Request request{.prompt = prompt_of(length, seed), .max_new_tokens = 12};
    request.sampling = {.temperature = 3, .seed = 1000};
    return request;
  }
  std::string refusal(Engine& engine, const Request& request) const {
    Result<std::int64_t> added = engine.add(request);
    return added.ok() ? std::string() : added.failure().message;
  }

  LanguageModel model_ = load(kFolder + "tiny_llama3_f16.gguf", MatmulMode::normal);
  Sampler sampler_ = std::move(Sampler::make(model_.host).value());
};

// Text, tokens and the end of generate(), for each kind of end.
TEST_F(Engines, GiveWhatASessionGenerates) {
  std::vector<Request> requests(6, request());
  requests[1].ignore_end = true;
  requests[1].max_new_tokens = 0;  // until the context is full
  requests[2].sampling.repetition_penalty = 2;
  requests[2].sampling.frequency_penalty = -3;
  requests[3].stop = {"a", "e", "1"};
  requests[4].sampling.top_p = 0.9;
  requests[4].sequence_id = 5;
  requests[5].max_new_tokens = 0;
  for (const Request& request : requests) {
    Session session = std::move(Session::make(model_, {.max_tokens = 48}).value());
    ASSERT_FALSE(session.append(request.prompt, nullptr));
    std::string text;
    const GenerationOptions options = {.sampling = request.sampling,
                                       .sequence_id = request.sequence_id,
                                       .max_new_tokens = request.max_new_tokens,
                                       .stop = request.stop,
                                       .ignore_end = request.ignore_end,
                                       .on_text = [&](std::string_view piece) -> Result<bool> {
                                         text += piece;
                                         return true;
                                       }};
    const Generation generation = generate(session, model_.tokenizer, options, sampler_).value();
    const Answer answer = run_alone(model_, {.max_tokens = 48}, request);
    EXPECT_EQ(answer.text, text);
    EXPECT_EQ(std::ssize(answer.tokens), generation.num_tokens);
    EXPECT_EQ(answer.finish,
              generation.finish == Finish::length ? FinishReason::length : FinishReason::stop);
  }
}

TEST_F(Engines, SampleAPromptSeveralTimes) {
  Request several = request(40);
  several.n = 5;
  Session session = std::move(Session::make(model_, {.num_pages = 64}).value());
  ASSERT_FALSE(session.append(several.prompt, nullptr));
  GenerationOptions options;
  options.sampling = several.sampling;
  options.max_new_tokens = several.max_new_tokens;
  const std::vector<Completion> expected =
      generate_n(session, model_.tokenizer, options, several.n, {}, sampler_).value();
  for (const std::int64_t max_num_seqs : {16, 2}) {  // with 2, the other samples wait
    const auto engine = engine_of(model_, {.max_num_seqs = max_num_seqs});
    ASSERT_TRUE(engine->add(several).ok());
    ASSERT_FALSE(engine->run());
    Answers answers;
    poll_all(*engine, answers);
    ASSERT_EQ(std::ssize(answers), several.n);
    for (std::int64_t i = 0; i < several.n; ++i) {
      const Completion& good = expected[static_cast<std::size_t>(i)];
      EXPECT_EQ(answers.at({1, i}).tokens, good.tokens) << i;
      EXPECT_EQ(answers.at({1, i}).text, good.text) << i;
    }
    // The prompt is computed once for all samples that run at once.
    if (max_num_seqs > several.n) {
      EXPECT_EQ(engine->stats().sequences.num_prompt_tokens, 40);
    }
    EXPECT_EQ(engine->stats().num_free_pages, engine->stats().num_pages);
  }
}

// ignore_end is about the end tokens of the model alone.
TEST_F(Engines, StopAtStopTokensStringsAndLengthsAlsoIfTheEndIsIgnored) {
  const Answer whole = run_alone(model_, {}, request());
  ASSERT_GT(whole.tokens.size(), 4u);
  for (const bool ignore_end : {false, true}) {
    Request stopped = request();
    stopped.ignore_end = ignore_end;
    stopped.stop_tokens = {whole.tokens[3]};
    const Answer by_token = run_alone(model_, {}, stopped);
    EXPECT_EQ(by_token.tokens, Tokens(whole.tokens.begin(), whole.tokens.begin() + 4));
    EXPECT_EQ(by_token.finish, FinishReason::stop);
    EXPECT_TRUE(whole.text.starts_with(by_token.text));

    stopped.stop_tokens = {};
    stopped.stop = {whole.text.substr(whole.text.size() / 2, 2)};
    const Answer by_string = run_alone(model_, {}, stopped);
    EXPECT_EQ(by_string.text, whole.text.substr(0, whole.text.find(stopped.stop[0])));
    EXPECT_EQ(by_string.finish, FinishReason::stop);

    stopped.stop = {};
    stopped.max_new_tokens = 3;
    const Answer by_length = run_alone(model_, {}, stopped);
    EXPECT_EQ(by_length.tokens, Tokens(whole.tokens.begin(), whole.tokens.begin() + 3));
    EXPECT_EQ(by_length.finish, FinishReason::length);
  }
}

TEST_F(Engines, ReportLogprobs) {
  Request wanted = request();
  wanted.sampling.temperature = 0;
  wanted.sampling.num_logprobs = 3;
  const auto engine = engine_of(model_, {});
  ASSERT_TRUE(engine->add(wanted).ok());
  ASSERT_FALSE(engine->run());
  const Output output = engine->poll().value();
  for (const OutputToken& token : output.tokens) {
    ASSERT_EQ(token.top_logprobs.size(), 3u);
    EXPECT_EQ(token.top_logprobs[0].token, token.token);
    EXPECT_EQ(token.top_logprobs[0].logprob, token.logprob);
    EXPECT_LT(token.logprob, 0);
  }
}

// ---- errors ----

TEST_F(Engines, RefuseBadRequests) {
  const auto engine = engine_of(model_, {.max_tokens = 48});
  const auto refused = [&](auto change) {
    Request bad = request();
    change(bad);
    return refusal(*engine, bad);
  };
  EXPECT_EQ(refused([](Request&) {}), "");
  EXPECT_EQ(refused([](Request& r) { r.prompt = {}; }),
            "prompt: has no tokens; pass at least one, such as the BOS token");
  EXPECT_EQ(refused([](Request& r) { r.prompt.assign(49, 1); }),
            "prompt: has 49 tokens, the engine's max_tokens is 48; shorten it or create an engine "
            "with a larger max_tokens");
  EXPECT_EQ(refused([](Request& r) { r.prompt[2] = 288; }),
            "prompt[2]=288: must be 0 to 287; pass tokens of this model's vocabulary");
  EXPECT_EQ(refused([](Request& r) { r.stop_tokens = {-1}; }),
            "stop_tokens[0]=-1: must be 0 to 287; pass tokens of this model's vocabulary");
  EXPECT_EQ(refused([](Request& r) { r.n = 0; }),
            "n=0: must be 1 to 1024; add several requests for more");
  EXPECT_EQ(refused([](Request& r) { r.max_new_tokens = -1; }),
            "max_new_tokens=-1: must be 0 to 9223372036854775807; pass 0 for no limit");
  EXPECT_NE(refused([](Request& r) { r.stop = {""}; }), "");
  EXPECT_NE(refused([](Request& r) { r.sampling.top_p = 0; }), "");
  EXPECT_EQ(refused([](Request& r) {
              r.n = 2;
              r.sampling.temperature = 0;
            }),
            "n=2 with temperature=0: greedy samples are equal; pass a temperature above 0, or n=1");
  EXPECT_EQ(engine->stats().num_requests, 1);
}

TEST_F(Engines, BoundTheNumberOfRequests) {
  const auto engine = engine_of(model_, {.max_requests = 2});
  EXPECT_EQ(refusal(*engine, request()), "");
  EXPECT_EQ(refusal(*engine, request()), "");
  const std::string full =
      "max_requests=2: as many requests have not ended or were not polled; poll their outputs and "
      "add this one later";
  EXPECT_EQ(refusal(*engine, request()), full);
  ASSERT_FALSE(engine->run());
  EXPECT_EQ(refusal(*engine, request()), full);  // not polled
  Answers answers;
  poll_all(*engine, answers);
  EXPECT_EQ(refusal(*engine, request()), "");
}

TEST_F(Engines, FailTheRequestsOfAFailedStepAlone) {
  int num_steps = 0;
  EngineOptions options = {.max_num_seqs = 2};
  options.before_step = [&](std::span<const Chunk>) -> Status {
    if (++num_steps == 3) return Failure{ErrorCode::out_of_memory, "no memory"};
    return std::nullopt;
  };
  const auto engine = engine_of(model_, options);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine->add(request(20)).ok());
  ASSERT_FALSE(engine->run());
  Answers answers;
  poll_all(*engine, answers);
  for (const std::int64_t id : {1, 2}) {
    EXPECT_EQ(answers.at({id, 0}).finish, FinishReason::error);
    EXPECT_EQ(answers.at({id, 0}).error, "no memory");
    EXPECT_EQ(answers.at({id, 0}).tokens.size(), 2u);
  }
  EXPECT_EQ(answers.at({3, 0}).tokens, run_alone(model_, {}, request(20)).tokens);
  EXPECT_EQ(engine->stats().num_free_pages, engine->stats().num_pages);
}

TEST_F(Engines, FailASampleAlone) {
  EngineOptions options;
  options.on_logits = [](std::int64_t id, std::int64_t sample, std::span<const float>) -> Status {
    if (id == 1 && sample == 1) return Failure{ErrorCode::io_error, "bad logits"};
    return std::nullopt;
  };
  const auto engine = engine_of(model_, options);
  Request several = request();
  several.n = 3;
  ASSERT_TRUE(engine->add(several).ok());
  ASSERT_TRUE(engine->add(request()).ok());
  ASSERT_FALSE(engine->run());
  Answers answers;
  poll_all(*engine, answers);
  EXPECT_EQ(answers.at({1, 1}).error, "bad logits");
  EXPECT_EQ(answers.at({1, 1}).finish, FinishReason::error);
  const Answer alone = run_alone(model_, {}, request());
  EXPECT_EQ(answers.at({1, 0}).tokens, alone.tokens);
  EXPECT_EQ(answers.at({2, 0}).tokens, alone.tokens);
}

TEST_F(Engines, EndWithTheDevice) {
  EngineOptions options = {.max_num_seqs = 1};
  options.before_step = [](std::span<const Chunk>) -> Status {
    return Failure{ErrorCode::device_error, "the device is lost"};
  };
  const auto engine = engine_of(model_, options);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine->add(request()).ok());
  const Status failed = engine->run();
  ASSERT_TRUE(failed);
  EXPECT_EQ(failed->message, "the device is lost");
  Answers answers;
  poll_all(*engine, answers);
  ASSERT_EQ(answers.size(), 3u);
  for (const auto& [key, answer] : answers) EXPECT_EQ(answer.error, "the device is lost");
  EXPECT_EQ(refusal(*engine, request()), "the device is lost");
}

// Any part of the text as a stop string: it ends the text before it, in whatever tokens it lies.
TEST_F(Engines, EndTheTextBeforeAStopStringWhereverItLies) {
  const std::string whole = run_alone(model_, {}, request()).text;
  ASSERT_GT(whole.size(), 8u);
  for (std::size_t begin = 0; begin < whole.size(); ++begin)
    for (const std::size_t length : {1, 2, 5}) {
      Request stopped = request();
      stopped.stop = {"#never#", whole.substr(begin, length)};
      const Answer answer = run_alone(model_, {}, stopped);
      EXPECT_EQ(answer.text, whole.substr(0, whole.find(stopped.stop[1]))) << begin;
      EXPECT_EQ(answer.finish, FinishReason::stop);
    }
}

// Text that a stop string could have begun with is held back, and given at the end: of the length,
// a stop token, and an abort.
TEST_F(Engines, GiveTheTextThatAStopStringCouldHaveBegunWith) {
  Request plain = request();
  plain.ignore_end = true;
  const Answer whole = run_alone(model_, {}, plain);
  for (const bool has_stop_token : {false, true})
    for (std::size_t length = 1; length <= whole.text.size(); ++length) {
      Request held = plain;
      if (has_stop_token) held.stop_tokens = {whole.tokens[7]};
      const std::string text = run_alone(model_, {}, held).text;
      held.stop = {text.substr(text.size() - std::min(length, text.size())) + "#"};
      const Answer answer = run_alone(model_, {}, held);
      EXPECT_EQ(answer.text, text) << held.stop[0];
      EXPECT_EQ(answer.finish, has_stop_token ? FinishReason::stop : FinishReason::length);
    }
  Request endless = plain;
  endless.stop = {whole.text + "#"};
  endless.max_new_tokens = 0;
  const auto engine = engine_of(model_, {});
  ASSERT_TRUE(engine->add(endless).ok());
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(engine->step().value());
  ASSERT_FALSE(engine->abort(1));
  ASSERT_FALSE(engine->run());
  Answers answers;
  poll_all(*engine, answers);
  EXPECT_EQ(answers.at({1, 0}).text, whole.text);
  EXPECT_EQ(answers.at({1, 0}).finish, FinishReason::aborted);
}

TEST_F(Engines, AbortRequests) {
  const auto engine = engine_of(model_, {.max_num_seqs = 2});
  Request endless = request(20);
  endless.ignore_end = true;
  endless.max_new_tokens = 0;
  endless.n = 3;  // of which 1 waits
  ASSERT_TRUE(engine->add(endless).ok());
  ASSERT_TRUE(engine->add(request()).ok());
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(engine->step().value());
  ASSERT_FALSE(engine->abort(1));
  ASSERT_FALSE(engine->abort(1));
  ASSERT_TRUE(engine->add(request()).ok());
  ASSERT_FALSE(engine->abort(3));  // before a step takes it
  ASSERT_FALSE(engine->run());
  ASSERT_FALSE(engine->abort(2));  // has ended
  Answers answers;
  poll_all(*engine, answers);
  ASSERT_EQ(answers.size(), 5u);
  for (const auto& [key, answer] : answers)
    EXPECT_EQ(answer.finish == FinishReason::aborted, key.first != 2) << key.first;
  EXPECT_EQ(answers.at({2, 0}).tokens, run_alone(model_, {}, request()).tokens);
  EXPECT_EQ(engine->stats().num_free_pages, engine->stats().num_pages);
  EXPECT_EQ(engine->abort(4)->message, "id=4: must be 1 to 3; pass an id that add returned");
}

// One thread steps, others add, abort and poll.
TEST_F(Engines, AreSharedByThreads) {
  const auto engine = engine_of(model_, {.max_num_seqs = 4, .max_requests = 8});
  std::atomic<int> num_adders = 3;
  std::atomic<std::int64_t> num_added = 0;
  std::vector<std::thread> adders;
  for (int t = 0; t < 3; ++t)
    adders.emplace_back([&, t] {
      Random random(static_cast<std::uint64_t>(t));
      for (int i = 0; i < 30; ++i) {
        Result<std::int64_t> id = engine->add(request(static_cast<std::size_t>(1 + t), 5));
        num_added += id.ok();
        if (id.ok() && random.chance(30)) {
          EXPECT_FALSE(engine->abort(id.value()));
        }
        std::this_thread::yield();
      }
      --num_adders;
    });
  Answers answers;
  std::atomic<bool> has_ended = false;
  std::thread poller([&] {
    while (!has_ended) poll_all(*engine, answers);
    poll_all(*engine, answers);
  });
  while (num_adders > 0) EXPECT_TRUE(engine->step().ok());
  EXPECT_FALSE(engine->run());
  has_ended = true;
  for (std::thread& adder : adders) adder.join();
  poller.join();
  EXPECT_EQ(std::ssize(answers), num_added);
  for (const auto& [key, answer] : answers) EXPECT_TRUE(answer.finish);
  EXPECT_EQ(engine->stats().num_requests, 0);
  EXPECT_EQ(engine->stats().num_finished_requests, num_added);
}

// ---- everything at random ----

class RandomRequests : public Engines, public ::testing::WithParamInterface<EngineOptions> {};

TEST_P(RandomRequests, EndOnce) {
  Random random(20261124);
  EngineOptions options = GetParam();
  options.max_tokens = 100;
  options.max_num_seqs = 6;
  options.max_requests = 20;
  options.num_pages = 14;
  const auto engine = engine_of(model_, options);
  Answers answers;
  std::int64_t num_samples = 0, last = 0;
  for (int i = 0; i < 1500; ++i) {
    if (random.chance(25)) {
      Request wanted = request(static_cast<std::size_t>(random.between(1, 80)), 9);
      wanted.n = random.chance(20) ? random.between(2, 5) : 1;
      wanted.max_new_tokens = random.between(1, 30);
      wanted.priority = random.between(0, 2);
      Result<std::int64_t> added = engine->add(wanted);
      if (added.ok()) {
        last = added.value();
        num_samples += wanted.n;
      }
    }
    if (last > 0 && random.chance(5)) {
      EXPECT_FALSE(engine->abort(random.between(1, last)));
    }
    ASSERT_TRUE(engine->step().ok());
    if (random.chance(30)) poll_all(*engine, answers);
  }
  ASSERT_FALSE(engine->run());
  poll_all(*engine, answers);
  EXPECT_GT(last, 50);
  EXPECT_EQ(std::ssize(answers), num_samples);
  for (const auto& [key, answer] : answers) {
    EXPECT_TRUE(answer.finish) << key.first;
    EXPECT_EQ(answer.error, "") << key.first;
  }
  EXPECT_GT(engine->stats().sequences.num_preemptions, 0);
  EXPECT_EQ(engine->stats().num_free_pages, 14);
  EXPECT_EQ(engine->stats().num_requests, 0);
}

// With codes a step of 70 tokens has recent pages for itself, not for a whole prompt.
INSTANTIATE_TEST_SUITE_P(
    Caches, RandomRequests,
    ::testing::Values(EngineOptions{}, EngineOptions{.max_batch_tokens = 70},
                      EngineOptions{.max_prompt_tokens = 90},
                      EngineOptions{.k_dtype = DType::i8, .v_dtype = DType::i8},
                      EngineOptions{.max_batch_tokens = 70, .k_dtype = DType::i8},
                      EngineOptions{.max_batch_tokens = 70,
                                    .k_dtype = DType::i8,
                                    .v_dtype = DType::i4x2,
                                    .num_host_pages = 6}));

// Tokens with codes do not depend on the size of a step, nor on a restart after a preemption.
TEST_F(Engines, AnswerLongPromptsWithCodes) {
  const EngineOptions alone = {.max_num_seqs = 1, .k_dtype = DType::i8, .v_dtype = DType::i8};
  EngineOptions steps = alone;
  steps.max_batch_tokens = 65;
  for (const std::size_t length : {std::size_t{30}, std::size_t{60}, std::size_t{115}}) {
    const Answer answer = run_alone(model_, steps, request(length));
    EXPECT_EQ(answer.error, "") << length;
    EXPECT_EQ(answer.tokens, run_alone(model_, alone, request(length)).tokens) << length;
  }
  EngineOptions crowded = steps;
  crowded.max_num_seqs = 2;
  crowded.max_batch_tokens = 66;
  crowded.num_pages = 9;
  crowded.has_prefix_cache = false;
  const auto engine = engine_of(model_, crowded);
  for (const std::uint64_t seed : {1, 2}) {
    Request wanted = request(30, seed);
    wanted.max_new_tokens = 90;
    wanted.ignore_end = true;
    ASSERT_TRUE(engine->add(wanted).ok());
  }
  ASSERT_FALSE(engine->run());
  Answers answers;
  poll_all(*engine, answers);
  EXPECT_GT(engine->stats().sequences.num_preemptions, 0);
  ASSERT_EQ(answers.size(), 2u);
  for (const auto& [key, answer] : answers) {
    Request wanted = request(30, static_cast<std::uint64_t>(key.first));
    wanted.max_new_tokens = 90;
    wanted.ignore_end = true;
    EXPECT_EQ(answer.tokens, run_alone(model_, alone, wanted).tokens) << key.first;
  }
}

// Of what a step does besides: here it sleeps, and waits.
TEST_F(Engines, CountTheTimeOfTheHost) {
  using std::chrono::milliseconds;
  using Clock = DeviceWait::Clock;
  EngineOptions options;
  std::int64_t num_steps = 0;
  options.before_step = [&](std::span<const Chunk>) -> Status {
    ++num_steps;
    std::this_thread::sleep_for(milliseconds(2));
    const DeviceWait wait;
    std::this_thread::sleep_for(milliseconds(4));
    return std::nullopt;
  };
  const auto engine = engine_of(model_, options);
  EXPECT_EQ(engine->stats().host_seconds, 0);
  ASSERT_TRUE(engine->add(request()).ok());
  const auto waited = DeviceWait::of_thread();
  const auto begin = Clock::now();
  ASSERT_FALSE(engine->run());
  const std::chrono::duration<double> all = Clock::now() - begin,
                                      waits = DeviceWait::of_thread() - waited;
  const double host = engine->stats().host_seconds;
  EXPECT_GE(host, 0.002 * static_cast<double>(num_steps));
  EXPECT_LE(host + waits.count(), all.count());
  EXPECT_GT(waits.count(), 0.004 * static_cast<double>(num_steps));
}

TEST_F(Engines, DoNotCountTheForwardOfACpu) {
  const auto engine = engine_of(model_, {});
  ASSERT_TRUE(engine->add(request()).ok());
  const auto waited = DeviceWait::of_thread();
  const auto begin = DeviceWait::Clock::now();
  ASSERT_FALSE(engine->run());
  const std::chrono::duration<double> all = DeviceWait::Clock::now() - begin,
                                      forward = DeviceWait::of_thread() - waited;
  EXPECT_GT(forward.count(), 0);
  EXPECT_LE(engine->stats().host_seconds + forward.count(), all.count());
}

}  // namespace
}  // namespace headrace::engine
