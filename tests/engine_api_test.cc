// The engine through the public API: the shared library, engine.h, engine.hpp and a tiny model
// file.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "headrace/engine.hpp"
#include "support/errors.h"
#include "support/older_structs.h"

namespace {

using headrace::Engine;
using headrace::Grammar;
using headrace::Model;
using headrace::Output;
using headrace::Request;
using headrace::Session;
using headrace::testing::error_of;
using headrace::testing::expect_older_structs;

const std::string kFile = std::string(HEADRACE_GOLDEN_DIR) + "/tiny/tiny_llama3_f16.gguf";
const std::vector<std::int32_t> kPrompt = {89, 271, 200, 103, 38};

Request request_of(std::uint64_t seed) {
  Request request{.prompt = kPrompt, .max_new_tokens = 12};
  request.sampling.temperature = 2;
  request.sampling.seed = seed;
  request.prompt.push_back(static_cast<std::int32_t>(seed % 256));
  return request;
}

std::map<std::int64_t, Output> poll_all(Engine& engine) {
  std::map<std::int64_t, Output> all;
  while (std::optional<Output> output = engine.poll()) all[output->id] = *output;
  return all;
}

TEST(EngineApi, AnswersAsSessionsDo) {
  const Model model(kFile);
  Engine engine(model, {.max_num_seqs = 3});
  constexpr std::int64_t kCount = 7;
  for (std::int64_t i = 1; i <= kCount; ++i)
    EXPECT_EQ(engine.add(request_of(static_cast<std::uint64_t>(i))), i);
  EXPECT_EQ(engine.stats().num_waiting, kCount);
  engine.run();
  EXPECT_FALSE(engine.step());
  const auto outputs = poll_all(engine);
  ASSERT_EQ(outputs.size(), static_cast<std::size_t>(kCount));
  for (const auto& [id, output] : outputs) {
    const Request request = request_of(static_cast<std::uint64_t>(id));
    Session session(model);
    session.append(request.prompt);
    std::string text;
    const headrace::Generation alone =
        session.generate({.sampling = request.sampling, .max_new_tokens = request.max_new_tokens},
                         [&](std::string_view piece) {
                           text += piece;
                           return true;
                         });
    EXPECT_EQ(output.text, text);
    EXPECT_EQ(std::ssize(output.tokens), alone.num_tokens);
    EXPECT_EQ(output.finish, alone.finish == HEADRACE_FINISH_LENGTH ? HEADRACE_REQUEST_LENGTH
                                                                    : HEADRACE_REQUEST_STOP);
    EXPECT_TRUE(output.logprobs.empty());
  }
  const headrace_engine_stats stats = engine.stats();
  EXPECT_EQ(stats.num_finished, kCount);
  EXPECT_EQ(stats.num_requests, 0);
  EXPECT_EQ(stats.num_running, 0);
  EXPECT_EQ(stats.num_prompt_tokens, kCount * 6);
  EXPECT_EQ(stats.num_free_pages, stats.num_pages);
  EXPECT_GT(stats.num_steps, 12);
  EXPECT_GT(stats.host_seconds, 0);
}

TEST(EngineApi, SearchesAsSessionsDo) {
  const Model model(kFile);
  Engine engine(model);
  Session session(model, {.num_pages = 64});
  session.append(kPrompt);
  const auto expected = session.beam_search(
      {.beam_width = 3, .length_penalty = 0.5, .max_new_tokens = 8, .ignore_end = true});
  engine.add({.prompt = kPrompt,
              .max_new_tokens = 8,
              .ignore_end = true,
              .beam_width = 3,
              .length_penalty = 0.5});
  engine.run();
  for (const headrace::Completion& completion : expected) {
    const Output output = engine.poll().value();
    EXPECT_EQ(output.tokens, completion.tokens);
    EXPECT_EQ(output.text, completion.text);
    EXPECT_EQ(output.logprobs.size(), 8u);
  }
  EXPECT_FALSE(engine.poll());
}

TEST(EngineApi, ReportsLogprobsOfTheTokens) {
  const Model model(kFile);
  Engine engine(model);
  Request request{.prompt = kPrompt, .max_new_tokens = 3};
  request.num_logprobs = 2;
  engine.add(request);
  request.num_logprobs = 500;  // of 288
  engine.add(request);
  engine.run();
  const auto outputs = poll_all(engine);
  const Output& output = outputs.at(1);
  ASSERT_EQ(output.logprobs.size(), 3u);
  ASSERT_EQ(output.top_logprobs.size(), 6u);
  Session session(model);
  session.append(kPrompt);
  std::vector<headrace_token_logprob> top(2);
  const headrace_token_logprob first = session.sample({}, std::ssize(kPrompt), top);
  EXPECT_EQ(output.tokens[0], first.token);
  EXPECT_EQ(output.logprobs[0], first.logprob);
  EXPECT_EQ(output.top_logprobs[1].token, top[1].token);
  EXPECT_EQ(output.top_logprobs[1].logprob, top[1].logprob);
  EXPECT_EQ(outputs.at(2).top_logprobs.at(287).token >= 0, true);
  EXPECT_EQ(outputs.at(2).top_logprobs.at(288).token, -1);
}

// Whenever a program polls: what it collects is the same.
TEST(EngineApi, OutputsOfManyPollsAreThoseOfOne) {
  const Model model(kFile);
  for (const std::optional<int> num_logprobs : {std::optional<int>(), {0}, {3}}) {
    std::map<std::int64_t, std::vector<Output>> by_period;
    for (const std::int64_t period : {1, 2, 3, 1000}) {
      Engine engine(model);
      Request request = request_of(4);
      request.n = 3;
      request.num_logprobs = num_logprobs;
      engine.add(request);
      std::vector<Output> samples(3);
      bool has_worked = true;
      for (std::int64_t step = 1; has_worked; ++step) {
        has_worked = engine.step();
        if (has_worked && step % period != 0) continue;
        while (std::optional<Output> output = engine.poll()) {
          Output& all = samples.at(static_cast<std::size_t>(output->sample));
          all.text += output->text;
          all.tokens.insert(all.tokens.end(), output->tokens.begin(), output->tokens.end());
          all.logprobs.insert(all.logprobs.end(), output->logprobs.begin(), output->logprobs.end());
          all.top_logprobs.insert(all.top_logprobs.end(), output->top_logprobs.begin(),
                                  output->top_logprobs.end());
          all.finish = output->finish;
        }
      }
      by_period[period] = std::move(samples);
    }
    for (const auto& [period, samples] : by_period)
      for (std::size_t i = 0; i < samples.size(); ++i) {
        const Output &got = samples[i], &whole = by_period.at(1000)[i];
        const std::size_t num_tokens = whole.tokens.size();
        EXPECT_EQ(got.text, whole.text) << period;
        EXPECT_EQ(got.tokens, whole.tokens) << period;
        EXPECT_EQ(got.logprobs, whole.logprobs) << period;
        EXPECT_EQ(got.logprobs.size(), num_logprobs ? num_tokens : 0);
        ASSERT_EQ(got.top_logprobs.size(),
                  num_tokens * static_cast<std::size_t>(num_logprobs.value_or(0)));
        for (std::size_t k = 0; k < got.top_logprobs.size(); ++k) {
          EXPECT_EQ(got.top_logprobs[k].token, whole.top_logprobs[k].token) << period;
          EXPECT_EQ(got.top_logprobs[k].logprob, whole.top_logprobs[k].logprob) << period;
        }
        EXPECT_EQ(got.finish, whole.finish) << period;
      }
  }
}

// Bytes of no character, special tokens and a zero are among them.
TEST(EngineApi, EveryTokenGivesTheTextOfASession) {
  const Model model(kFile);
  Engine engine(model);
  const auto vocab_size = static_cast<std::int32_t>(model.info().vocab_size);
  Request request{.prompt = kPrompt, .max_new_tokens = 2, .ignore_end = true};
  for (std::int32_t token = 0; token < vocab_size; ++token) {
    request.sampling.logit_bias = {{token, 1e6f}};
    engine.add(request);
  }
  engine.run();
  const auto outputs = poll_all(engine);
  bool has_zero = false;
  for (std::int32_t token = 0; token < vocab_size; ++token) {
    const Output& output = outputs.at(token + 1);
    EXPECT_EQ(output.tokens, (std::vector{token, token}));
    Session session(model);
    session.append(kPrompt);
    std::string text;
    session.generate(
        {.sampling = {.logit_bias = {{token, 1e6f}}}, .max_new_tokens = 2, .ignore_end = true},
        [&](std::string_view piece) {
          text += piece;
          return true;
        });
    EXPECT_EQ(output.text, text) << token;
    has_zero |= text.find('\0') != std::string::npos;
  }
  EXPECT_TRUE(has_zero);
}

TEST(EngineApi, NamesTheStopStringThatEnded) {
  const Model model(kFile);
  Engine engine(model);
  Request request = request_of(1);
  engine.add(request);
  engine.run();
  const Output whole = engine.poll().value();
  EXPECT_FALSE(whole.stop_string);
  const std::size_t at = whole.text.find_first_not_of(whole.text[0]);
  ASSERT_NE(at, std::string::npos);
  request.stop = {"never", whole.text.substr(at, 1)};
  engine.add(request);
  request.stop = {};
  request.stop_tokens = {whole.tokens[1]};
  engine.add(request);
  engine.run();
  const auto outputs = poll_all(engine);
  EXPECT_EQ(outputs.at(2).stop_string, 1u);
  EXPECT_EQ(outputs.at(2).finish, HEADRACE_REQUEST_STOP);
  EXPECT_EQ(outputs.at(2).text, whole.text.substr(0, at));
  EXPECT_FALSE(outputs.at(3).stop_string);
  EXPECT_EQ(outputs.at(3).finish, HEADRACE_REQUEST_STOP);
}

TEST(EngineApi, RequestsWithOtherSaltsShareNoCachedPrompt) {
  const Model model(kFile);
  for (const std::size_t length : {60u, 100u}) {
    Engine engine(model, {.page_size = 8});
    Request request = request_of(1);
    request.prompt.resize(length, 5);
    std::string text;
    const auto num_cached = [&](std::int64_t salt) {
      const std::int64_t before = engine.stats().num_cached_tokens;
      request.cache_salt = salt;
      engine.add(request);
      engine.run();
      const Output output = engine.poll().value();
      EXPECT_EQ(output.text, text.empty() ? output.text : text);
      text = output.text;
      EXPECT_EQ(output.num_cached_tokens, engine.stats().num_cached_tokens - before);
      return output.num_cached_tokens;
    };
    for (const std::int64_t salt :
         {std::int64_t{0}, std::int64_t{1}, (std::int64_t{1} << 56) - 1}) {
      EXPECT_EQ(num_cached(salt), 0) << salt;
      EXPECT_GT(num_cached(salt), 0) << salt;
    }
  }
}

TEST(EngineApi, AbortsAndRefuses) {
  const Model model(kFile);
  Engine engine(model, {.max_tokens = 16, .max_requests = 2});
  const std::int64_t id = engine.add(request_of(1));
  engine.abort(id);
  engine.run();
  const Output output = engine.poll().value();
  EXPECT_EQ(output.finish, HEADRACE_REQUEST_ABORTED);
  EXPECT_TRUE(output.tokens.empty());
  error_of([&] { engine.abort(2); }, HEADRACE_INVALID_ARGUMENT);
  const auto refused = [&](auto change) {
    Request request = request_of(1);
    change(request);
    return error_of([&] { engine.add(request); }, HEADRACE_INVALID_ARGUMENT);
  };
  EXPECT_EQ(refused([](Request& r) { r.prompt.resize(17, 1); }),
            "prompt: has 17 tokens, the engine's max_tokens is 16; shorten it or create an engine "
            "with a larger max_tokens");
  EXPECT_EQ(refused([](Request& r) { r.prompt[0] = -1; }),
            "prompt[0]=-1: must be 0 to 287; pass tokens of this model's vocabulary");
  EXPECT_EQ(refused([](Request& r) { r.stop = {""}; }),
            "stop[0]: must not be NULL or empty; pass a non-empty string");
  EXPECT_EQ(refused([](Request& r) { r.cache_salt = -1; }),
            "cache_salt=-1: must be 0 to 72057594037927935; pass 0 where all requests may share "
            "cached prompts");
  EXPECT_EQ(refused([](Request& r) { r.num_logprobs = 1025; }),
            "num_logprobs=1025: must be 0 to 1024, or -1 for no logprobs; pass fewer");
  engine.add(request_of(1));
  engine.add(request_of(2));
  error_of([&] { engine.add(request_of(3)); }, HEADRACE_BUSY);
}

TEST(EngineApi, ChecksItsOptions) {
  const Model model(kFile);
  const auto refused = [&](const headrace::EngineOptions& options) {
    return error_of([&] { Engine engine(model, options); }, HEADRACE_INVALID_ARGUMENT);
  };
  EXPECT_EQ(refused({.max_tokens = 129}),
            "max_tokens=129: must be 1 to 128; pass 0 for the model's context_length");
  EXPECT_EQ(refused({.max_batch_tokens = 40}),
            "max_batch_tokens=40: must be at least 96: a token of each of max_num_seqs=32 "
            "sequences and a chunk of a prompt; pass more, or a smaller max_num_seqs");
  EXPECT_EQ(refused({.num_pages = 7}),
            "num_pages=7: must be at least 8, the pages of a sequence of 128 tokens; pass more "
            "pages or a smaller context");
  for (const auto& options :
       {headrace::EngineOptions{.max_num_seqs = -1},
        headrace::EngineOptions{.max_batch_tokens = -1}, headrace::EngineOptions{.max_requests = 0},
        headrace::EngineOptions{.page_size = 0}, headrace::EngineOptions{.page_size = -1},
        headrace::EngineOptions{.num_pages = -1}, headrace::EngineOptions{.num_host_pages = -1},
        headrace::EngineOptions{.max_batch_tokens = INT64_MAX},
        headrace::EngineOptions{.max_num_seqs = INT64_MAX},
        headrace::EngineOptions{.cache_dtype = headrace::DType::boolean}})
    EXPECT_NE(refused(options), "");
  const Model vocabulary(kFile, {.vocab_only = true});
  EXPECT_EQ(error_of([&] { Engine engine(vocabulary); }, HEADRACE_INVALID_ARGUMENT),
            "model: it was loaded with vocab_only and has no weights; load it without vocab_only");
}

TEST(EngineApi, NullArgumentsAreErrors) {
  const Model model(kFile);
  Engine engine(model);
  headrace_engine* made = nullptr;
  headrace_output* output = nullptr;
  headrace_request request;
  headrace_request_init(&request);
  std::int64_t id = 0;
  const auto is_refused = [](headrace_status status, const char* text) {
    EXPECT_EQ(status, HEADRACE_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(headrace_last_error()).find(text), 0u) << headrace_last_error();
  };
  is_refused(headrace_engine_create(nullptr, nullptr, &made), "model=NULL: ");
  is_refused(headrace_engine_create(model.get(), nullptr, nullptr), "engine=NULL: ");
  is_refused(headrace_engine_add(nullptr, &request, &id), "engine=NULL: ");
  is_refused(headrace_engine_add(engine.get(), nullptr, &id), "request=NULL: ");
  is_refused(headrace_engine_add(engine.get(), &request, nullptr), "id=NULL: ");
  is_refused(headrace_engine_add(engine.get(), &request, &id), "prompt: has no tokens");
  request.num_tokens = 1;
  is_refused(headrace_engine_add(engine.get(), &request, &id), "tokens=NULL: ");
  request.num_stop_tokens = 1;
  request.tokens = kPrompt.data();
  is_refused(headrace_engine_add(engine.get(), &request, &id), "stop_tokens=NULL: ");
  request.num_stop_tokens = 0;
  request.num_stop = 1;
  is_refused(headrace_engine_add(engine.get(), &request, &id), "stop=NULL: ");
  is_refused(headrace_engine_abort(nullptr, 1), "engine=NULL: ");
  is_refused(headrace_engine_step(nullptr, nullptr), "engine=NULL: ");
  is_refused(headrace_engine_run(nullptr), "engine=NULL: ");
  is_refused(headrace_engine_poll(nullptr, &output), "engine=NULL: ");
  is_refused(headrace_engine_poll(engine.get(), nullptr), "output=NULL: ");
  is_refused(headrace_output_get(nullptr, nullptr), "output=NULL: ");
  headrace_output_destroy(nullptr);
  headrace_engine_destroy(nullptr);
  EXPECT_EQ(headrace_engine_step(engine.get(), nullptr), HEADRACE_OK);
}

TEST(EngineApi, IsSharedByThreads) {
  const Model model(kFile);
  Engine engine(model, {.max_num_seqs = 4});
  constexpr int kThreads = 3, kCount = 10;
  std::atomic<int> num_ended = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < kCount; ++i) {
        const std::int64_t id = engine.add(request_of(static_cast<std::uint64_t>(10 * t + i)));
        if (i % 4 == 3) engine.abort(id);
        while (const std::optional<Output> output = engine.poll())
          num_ended += output->finish != HEADRACE_REQUEST_RUNNING;
        EXPECT_LE(engine.stats().num_running, 4);
      }
    });
  std::thread stepper([&] {
    while (engine.stats().num_finished < kThreads * kCount) engine.step();
  });
  for (std::thread& thread : threads) thread.join();
  stepper.join();
  while (const std::optional<Output> output = engine.poll())
    num_ended += output->finish != HEADRACE_REQUEST_RUNNING;
  EXPECT_EQ(num_ended, kThreads * kCount);
}

// ---- structs of older headers ----

// The outputs of a request, or the error.
std::string outcome_of(headrace_engine* engine, const headrace_request& request) {
  std::int64_t id = 0;
  if (headrace_engine_add(engine, &request, &id) != HEADRACE_OK) return headrace_last_error();
  headrace_engine_run(engine);
  std::string text;
  for (headrace_output* output = nullptr;;) {
    headrace_engine_poll(engine, &output);
    if (output == nullptr) return text;
    headrace_output_info info{};
    info.struct_size = sizeof info;
    headrace_output_get(output, &info);
    for (std::int64_t i = 0; i < info.num_tokens; ++i) text += std::to_string(info.tokens[i]) + ' ';
    text += std::to_string(info.num_top) + '/' + std::to_string(info.finish) + '\n';
    headrace_output_destroy(output);
  }
}

TEST(OlderStructs, OfEngineOptions) {
  const Model model(kFile);
  headrace_engine_options full, defaults;
  headrace_engine_options_init(&defaults);
  full = defaults;
  full.max_tokens = 9;
  full.max_batch_tokens = 200;
  full.max_num_seqs = 2;
  full.max_requests = 1;
  full.page_size = 5;
  full.num_pages = 2;
  full.num_host_pages = 3;
  full.cache_dtype = HEADRACE_F32;
  full.no_prefix_cache = 1;
  full.max_prompt_tokens = 200;
  const auto outcome = [&model](const headrace_engine_options& options) {
    headrace_engine* engine = nullptr;
    if (headrace_engine_create(model.get(), &options, &engine) != HEADRACE_OK)
      return std::string(headrace_last_error());
    headrace_request request;
    headrace_request_init(&request);
    request.tokens = kPrompt.data();
    request.num_tokens = kPrompt.size();
    std::int64_t id = 0;
    std::string text = headrace_engine_add(engine, &request, &id) == HEADRACE_OK ? "added " : "";
    text += outcome_of(engine, request);
    headrace_engine_stats stats{};
    stats.struct_size = sizeof stats;
    headrace_engine_get_stats(engine, &stats);
    headrace_engine_destroy(engine);
    return text + std::to_string(stats.num_pages);
  };
  // max_requests, page_size and num_pages change the outcome beside max_tokens.
  expect_older_structs<headrace_engine_options>("engine_options", full, defaults,
                                                sizeof(std::size_t), 4, outcome);
}

TEST(OlderStructs, OfRequests) {
  const Model model(kFile);
  Engine engine(model);
  headrace_request full, defaults;
  headrace_request_init(&defaults);
  defaults.max_new_tokens = 0;
  full = defaults;
  headrace_sampling_options sampling;
  headrace_sampling_options_init(&sampling);
  sampling.temperature = 2;
  const std::int32_t stop_tokens[] = {1, 2, 3};
  const char* const stop[] = {"e", "a"};
  full.tokens = kPrompt.data();
  full.num_tokens = kPrompt.size();
  full.sampling = &sampling;
  full.n = 2;
  full.max_new_tokens = 9;
  full.stop_tokens = stop_tokens;
  full.num_stop_tokens = 3;
  full.stop = stop;
  full.num_stop = 2;
  full.priority = 1;
  full.num_logprobs = 3;
  full.ignore_end = 1;
  const Grammar grammar = Grammar::regex(model, "a*");
  full.grammar = grammar.get();  // refused beside ignore_end
  full.cache_salt = -1;
  full.beam_width = 2;  // refused beside n
  full.length_penalty = -1;
  expect_older_structs<headrace_request>(
      "request", full, defaults, sizeof(std::size_t), 8,
      [&](const headrace_request& request) { return outcome_of(engine.get(), request); });
}

}  // namespace
