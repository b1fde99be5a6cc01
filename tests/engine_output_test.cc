// Outputs of an engine, as C programs read them.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "headrace/engine.hpp"

namespace {

using headrace::Engine;
using headrace::Model;
using headrace::Request;

const std::string kFile = std::string(HEADRACE_GOLDEN_DIR) + "/tiny/tiny_llama3_f16.gguf";

Request request_of(std::uint64_t seed) {
  Request request{.prompt = {89, 271, 200, 103, 38}, .max_new_tokens = 12};
  request.sampling.temperature = 2;
  request.sampling.seed = seed;
  return request;
}

// headrace_output_get() reads and does not consume.
TEST(EngineOutput, OutputsMayBeReadTwice) {
  const Model model(kFile);
  for (const std::int64_t num_logprobs : {-1, 0, 3}) {
    Engine engine(model);
    Request request = request_of(1);
    if (num_logprobs >= 0) request.num_logprobs = num_logprobs;
    engine.add(request);
    engine.run();
    headrace_output* output = nullptr;
    ASSERT_EQ(headrace_engine_poll(engine.get(), &output), HEADRACE_OK);
    ASSERT_NE(output, nullptr);
    std::vector<std::vector<float>> read;
    std::vector<std::vector<const void*>> pointers;  // valid as long as the output
    for (int i = 0; i < 2; ++i) {
      headrace_output_info info{};
      info.struct_size = sizeof info;
      ASSERT_EQ(headrace_output_get(output, &info), HEADRACE_OK);
      EXPECT_EQ(info.num_top, std::max<std::int64_t>(num_logprobs, 0));
      ASSERT_GT(info.num_tokens, 0);
      pointers.push_back({info.tokens, info.logprobs, info.top_logprobs, info.text});
      std::vector<float>& all = read.emplace_back(info.tokens, info.tokens + info.num_tokens);
      for (std::int64_t t = 0; info.top_logprobs != nullptr && t < info.num_tokens * info.num_top;
           ++t)
        all.push_back(info.top_logprobs[t].logprob);
    }
    EXPECT_EQ(read[0], read[1]);
    EXPECT_EQ(pointers[0], pointers[1]);
    headrace_output_destroy(output);
  }
}

// The first call makes the arrays: threads that read an output together get the same ones.
TEST(EngineOutput, AnOutputMayBeReadByManyThreads) {
  const Model model(kFile);
  for (int round = 0; round < 100; ++round) {
    Engine engine(model);
    Request request = request_of(static_cast<std::uint64_t>(round));
    request.num_logprobs = 20;
    engine.add(request);
    engine.run();
    headrace_output* output = nullptr;
    ASSERT_EQ(headrace_engine_poll(engine.get(), &output), HEADRACE_OK);
    std::atomic<int> num_waiting = 4;
    std::vector<std::array<const void*, 2>> pointers(4);
    std::vector<std::thread> threads;
    for (auto& own : pointers)
      threads.emplace_back([&] {
        headrace_output_info info{};
        info.struct_size = sizeof info;
        for (--num_waiting; num_waiting > 0;) std::this_thread::yield();
        EXPECT_EQ(headrace_output_get(output, &info), HEADRACE_OK);
        own = {info.tokens, info.top_logprobs};
      });
    for (std::thread& thread : threads) thread.join();
    for (const auto& own : pointers) EXPECT_EQ(own, pointers[0]);
    headrace_output_destroy(output);
  }
}

}  // namespace
