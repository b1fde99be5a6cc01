// Engines and sessions of several threads on one GPU: each has its own stream, so none waits for
// another one, ends its captures or changes its tokens.
#include <atomic>
#include <chrono>
#include <functional>
#include <new>
#include <thread>

#include "backends/cuda/backend.h"
#include "cuda/gpu.h"
#include "engine/model_fixture.h"
#include "engine/session.h"
#include "support/engine_fixture.h"
#include "support/forwarding_device.h"

namespace headrace::engine {
namespace {

constexpr const char* kFile = "tiny_llama3_f16.gguf";
constexpr const char* kOtherFile = "tiny_mistral_q4_1.gguf";
constexpr int kRounds = 12;

LanguageModel on_gpu(const char* file) {
  return load(std::string(HEADRACE_GOLDEN_DIR) + "/tiny/" + file, MatmulMode::normal, 2, false,
              cuda::device_info(0).value());
}

// Greedy and drawn tokens: of the device alone (graphs, a step behind), some with penalties, and by
// filters that the host ends.
std::vector<Request> requests() {
  std::vector<Request> all;
  for (const std::size_t length : {4, 70, 8, 30, 33, 65, 1, 17, 20, 12, 9, 50}) {
    Request request{.prompt = prompt_of(length, 7), .max_new_tokens = 40};
    request.sampling = {.temperature = all.size() % 2 == 0 ? 0.0 : 2.0, .seed = all.size()};
    request.ignore_end = true;
    all.push_back(request);
  }
  return all;
}

std::vector<Request> requests_with_the_host() {
  std::vector<Request> all = requests();
  for (std::size_t i = 0; i < all.size(); i += 3) {
    all[i].sampling.temperature = 1;
    if (i % 2 == 0) all[i].sampling.top_k = 20;
    if (i % 2 == 1) all[i].sampling.repetition_penalty = 1.2;
  }
  return all;
}

// With preemption to the host and pages that fork; steps repeat, so most are graphs.
EngineOptions crowded() {
  return {.max_num_seqs = 10,
          .cache_dtype = DType::bf16,
          .page_size = 8,
          .num_pages = 60,
          .num_host_pages = 60};
}
EngineOptions roomy() { return {.cache_dtype = DType::bf16, .num_pages = 400}; }

Answers answers_of(Engine& engine, const std::vector<Request>& wanted) {
  Answers answers;
  for (const Request& request : wanted) EXPECT_TRUE(engine.add(request).ok());
  const Status failed = engine.run();
  EXPECT_FALSE(failed) << failed->message;
  poll_all(engine, answers);
  return answers;
}

std::vector<Tokens> tokens_of(const LanguageModel& model, const EngineOptions& options,
                              const std::vector<Request>& wanted) {
  const auto engine = engine_of(model, options);
  std::vector<Tokens> tokens;
  for (const auto& [key, answer] : answers_of(*engine, wanted)) {
    EXPECT_EQ(answer.finish, FinishReason::length) << "request " << key.first << answer.error;
    tokens.push_back(answer.tokens);
  }
  return tokens;
}

// Compares all rounds with the engine alone. A new engine each time has no graphs, so it captures.
void expect_same(const LanguageModel& model, const EngineOptions& options,
                 const std::vector<Request>& wanted, const std::vector<Tokens>& alone) {
  for (int round = 0; round < kRounds; ++round)
    ASSERT_EQ(tokens_of(model, options, wanted), alone) << "round " << round;
}

class EnginesOnGpu : public ::testing::Test {
 protected:
  void SetUp() override { HEADRACE_NEEDS_GPU(80); }

  // Each in a thread of its own.
  static void run_together(const std::vector<std::function<void()>>& bodies) {
    std::vector<std::thread> threads;
    for (const auto& body : bodies)
      threads.emplace_back([&body] {
        try {
          body();
        } catch (const std::exception& error) {
          ADD_FAILURE() << error.what();
        }
      });
    for (std::thread& thread : threads) thread.join();
  }
  // `work` goes on, again and again, until `body` has ended.
  static void run_beside(const std::function<void()>& work, const std::function<void()>& body) {
    std::atomic<bool> has_ended = false;
    int num_runs = 0;
    run_together({[&] {
                    while (!has_ended && !::testing::Test::HasFailure()) {
                      work();
                      ++num_runs;
                    }
                  },
                  [&] {
                    try {
                      body();
                    } catch (...) {
                      has_ended = true;
                      throw;
                    }
                    has_ended = true;
                  }});
    EXPECT_GT(num_runs, 1);
  }
};

TEST_F(EnginesOnGpu, OfOneModelHaveTheTokensOfOneAlone) {
  const LanguageModel model = on_gpu(kFile);
  const auto fast = tokens_of(model, roomy(), requests()),
             slow = tokens_of(model, crowded(), requests_with_the_host());
  run_together({[&] { expect_same(model, roomy(), requests(), fast); },
                [&] { expect_same(model, crowded(), requests_with_the_host(), slow); }});
}

TEST_F(EnginesOnGpu, OfTwoModelsHaveTheTokensOfOneAlone) {
  const LanguageModel model = on_gpu(kFile), other = on_gpu(kOtherFile);
  const auto tokens = tokens_of(model, roomy(), requests()),
             others = tokens_of(other, crowded(), requests());
  run_together({[&] { expect_same(model, roomy(), requests(), tokens); },
                [&] { expect_same(other, crowded(), requests(), others); }});
}

// Graphs of one engine are launched while the other one captures its own.
TEST_F(EnginesOnGpu, ThatGoOnHaveTheTokensOfOneAlone) {
  const LanguageModel model = on_gpu(kFile);
  const auto alone = tokens_of(model, roomy(), requests());
  const auto go_on = [&] {
    const auto engine = engine_of(model, roomy());
    for (int round = 0; round < kRounds; ++round) {
      std::vector<Tokens> tokens;
      for (const auto& [key, answer] : answers_of(*engine, requests()))
        tokens.push_back(answer.tokens);
      ASSERT_EQ(tokens, alone) << "round " << round;
    }
  };
  run_together({go_on, go_on, [&] { expect_same(model, roomy(), requests(), alone); }});
}

// Codes have recent pages, which forks copy.
TEST_F(EnginesOnGpu, WithCodesHaveTheTokensOfOneAlone) {
  const LanguageModel model = on_gpu(kFile);
  EngineOptions options = roomy();
  options.k_dtype = options.v_dtype = DType::i8;
  std::vector<Request> wanted = requests();
  wanted[1].n = 3;
  const auto alone = tokens_of(model, options, wanted);
  run_together({[&] { expect_same(model, options, wanted, alone); },
                [&] { expect_same(model, options, wanted, alone); }});
}

TEST_F(EnginesOnGpu, DoNotDependOnEnginesThatComeAndGo) {
  const LanguageModel model = on_gpu(kFile);
  const auto alone = tokens_of(model, roomy(), requests());
  run_beside(
      [&] {  // with steps on their way
        const auto engine = engine_of(model, crowded());
        for (const Request& request : requests()) ASSERT_TRUE(engine->add(request).ok());
        for (int step = 0; step < 9; ++step) ASSERT_TRUE(engine->step().ok());
      },
      [&] { expect_same(model, roomy(), requests(), alone); });
}

// Weights are there before the first step reads them.
TEST_F(EnginesOnGpu, DoNotDependOnModelsThatComeAndGo) {
  const LanguageModel model = on_gpu(kFile);
  const auto alone = tokens_of(model, roomy(), requests());
  std::vector<Tokens> others;
  run_beside(
      [&] {
        const LanguageModel other = on_gpu(kOtherFile);
        const auto tokens = tokens_of(other, roomy(), requests());
        if (others.empty()) others = tokens;
        ASSERT_EQ(tokens, others);
      },
      [&] { expect_same(model, roomy(), requests(), alone); });
}

// Draws that are on their way when memory is missing are dropped, and must not meet those of the
// requests that come next.
TEST_F(EnginesOnGpu, GoOnAfterMemoryWasMissing) {
  const LanguageModel model = on_gpu(kFile);
  std::vector<Request> wanted = requests();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (i % 2 == 0) wanted[i].sampling.repetition_penalty = 1.2;
    if (i % 3 == 0) wanted[i].sampling.logit_bias = {{7, 2.0f}, {100, -1.5f}};
  }
  const auto alone = tokens_of(model, roomy(), wanted);
  EngineOptions options = roomy();
  int steps_left = 0;
  options.before_step = [&](std::span<const Chunk>) -> Status {
    if (steps_left >= 0 && steps_left-- == 0) throw std::bad_alloc();
    return std::nullopt;
  };
  const auto engine = engine_of(model, options);
  for (const int num_steps : {1, 2, 3, 5, 8, 13, 21, 34}) {
    Answers answers;
    steps_left = num_steps;
    for (const Request& request : wanted) ASSERT_TRUE(engine->add(request).ok());
    EXPECT_THROW(static_cast<void>(engine->run()), std::bad_alloc);
    poll_all(*engine, answers);
    for (const auto& [key, answer] : answers) EXPECT_EQ(answer.finish, FinishReason::error);
    std::vector<Tokens> tokens;
    steps_left = -1;
    for (const auto& [key, answer] : answers_of(*engine, wanted)) tokens.push_back(answer.tokens);
    EXPECT_EQ(tokens, alone) << "after " << num_steps << " steps";
  }
}

// A program beside engines that uses CUDA as most do: work of the default stream, memory of its
// own.
TEST_F(EnginesOnGpu, DoNotDependOnTheDefaultStream) {
  const LanguageModel model = on_gpu(kFile);
  const auto alone = tokens_of(model, roomy(), requests());
  run_beside(
      [&] {
        std::vector<int> values(10000, 3);
        void* data = nullptr;
        const std::size_t bytes = values.size() * sizeof values[0];
        HEADRACE_EXPECT_CUDA(cudaMalloc(&data, bytes));
        HEADRACE_EXPECT_CUDA(cudaMemset(data, 0, bytes));
        HEADRACE_EXPECT_CUDA(cudaMemcpy(values.data(), data, bytes, cudaMemcpyDeviceToHost));
        HEADRACE_EXPECT_CUDA(cudaStreamSynchronize(nullptr));
        HEADRACE_EXPECT_CUDA(cudaFree(data));
        ASSERT_EQ(values.back(), 0);
      },
      [&] { expect_same(model, roomy(), requests(), alone); });
}

// Keeps the default stream busy until it is opened, or for 20 s.
class Gate {
 public:
  Gate() { HEADRACE_EXPECT_CUDA(cudaLaunchHostFunc(nullptr, wait, this)); }
  Gate(const Gate&) = delete;
  ~Gate() { open(); }
  void open() {
    is_open_ = true;
    HEADRACE_EXPECT_CUDA(cudaStreamSynchronize(nullptr));
  }
  bool was_late() const { return was_late_; }

 private:
  static void wait(void* opaque) {
    auto* const gate = static_cast<Gate*>(opaque);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!gate->is_open_ && !gate->was_late_) {
      gate->was_late_ = std::chrono::steady_clock::now() > end;
      std::this_thread::yield();
    }
  }
  std::atomic<bool> is_open_ = false, was_late_ = false;
};

// Work that lands on the default stream is late, or has not run when its results are read.
TEST_F(EnginesOnGpu, DoNotWaitForTheDefaultStream) {
  const LanguageModel model = on_gpu(kFile);
  EngineOptions options = crowded();
  options.has_prefix_cache = false;  // so that all rounds have the same steps
  const auto engine = engine_of(model, options);
  const auto tokens = [&] {
    std::vector<Tokens> all;
    for (const auto& [key, answer] : answers_of(*engine, requests_with_the_host()))
      all.push_back(answer.tokens);
    return all;
  };
  // Memory, kernels and graphs are there afterwards: their making may wait for the whole device.
  const auto alone = tokens();
  for (int round = 0; round < 3; ++round) ASSERT_EQ(tokens(), alone);
  EXPECT_GT(engine->stats().sequences.num_preemptions, 0);
  Gate gate;
  EXPECT_EQ(tokens(), alone);
  EXPECT_FALSE(gate.was_late()) << "the engine waits for the default stream";
}

// A GPU that says that it has `limit` bytes, less those that are allocated.
class SmallDevice final : public testing::ForwardingDevice {
 public:
  SmallDevice(std::unique_ptr<Device> gpu, std::size_t limit)
      : ForwardingDevice(std::move(gpu)), limit_(limit) {}
  Buffer allocate(std::size_t bytes) override {
    Buffer memory = ForwardingDevice::allocate(bytes);
    *num_used_ += bytes;
    const auto free = [memory, used = num_used_, bytes](std::byte*) { *used -= bytes; };
    return {std::shared_ptr<std::byte>(memory.data(), free), bytes};
  }
  std::size_t free_bytes() override { return limit_ - std::min(limit_, num_used_->load()); }

 private:
  const std::size_t limit_;
  std::shared_ptr<std::atomic<std::size_t>> num_used_ =
      std::make_shared<std::atomic<std::size_t>>(0);
};

std::int64_t pages_of(const Engine& engine) { return engine.stats().num_pages; }

TEST_F(EnginesOnGpu, HavePagesForAllSequencesAtOnce) {
  const LanguageModel model = on_gpu(kFile);
  const std::int64_t of_one = model.decoder->config.context_length / 16;
  EXPECT_EQ(pages_of(*engine_of(model, {})), 256 * of_one);
  EXPECT_EQ(pages_of(*engine_of(model, {.max_num_seqs = 40})), 40 * of_one);
  EXPECT_EQ(pages_of(*engine_of(model, {.max_num_seqs = 1})), 4 * of_one);
  EXPECT_EQ(pages_of(*engine_of(model, {.max_tokens = 33, .max_num_seqs = 40})), 40 * 3);
  EXPECT_EQ(pages_of(*engine_of(model, {.num_pages = 77})), 77) << "a given number is exact";
}

// The first one takes 90 % of what is free behind its buffers, the second 90 % of the rest.
TEST_F(EnginesOnGpu, ShareTheMemoryThatIsFree) {
  const auto alone = tokens_of(on_gpu(kFile), roomy(), requests());
  LanguageModel model = on_gpu(kFile);
  EngineOptions options = {
      .max_batch_tokens = 4096, .max_num_seqs = 4000, .cache_dtype = DType::bf16};
  // The sampler of an engine takes 5 MiB, the pages of 4000 sequences 125 MiB.
  constexpr std::size_t kLimit = std::size_t{128} << 20;
  model.device = std::make_unique<SmallDevice>(std::move(model.device), kLimit);
  const std::size_t before = model.device->free_bytes();
  const auto first = engine_of(model, options);
  const std::size_t between = model.device->free_bytes();
  options.max_num_seqs = 100;
  options.max_batch_tokens = 200;
  const auto second = engine_of(model, options);
  const std::int64_t of_one = model.decoder->config.context_length / 16;
  EXPECT_LT(pages_of(*first), 4000 * of_one);
  EXPECT_GT(pages_of(*first), 4 * of_one);
  EXPECT_LT(between, before / 8) << "9 of 10 bytes are pages or buffers";
  EXPECT_GT(between, 0u);
  EXPECT_GE(pages_of(*second), of_one);
  EXPECT_LT(pages_of(*second), pages_of(*first));
  for (Engine* engine : {first.get(), second.get()}) {
    std::vector<Tokens> tokens;
    for (const auto& [key, answer] : answers_of(*engine, requests()))
      tokens.push_back(answer.tokens);
    EXPECT_EQ(tokens, alone);
  }
}

TEST_F(EnginesOnGpu, AreRefusedWhereNoSequenceFits) {
  LanguageModel model = on_gpu(kFile);
  model.device = std::make_unique<SmallDevice>(std::move(model.device), std::size_t{64} << 20);
  // A page of which one is larger than the device.
  const auto made = Engine::make(model, {.max_num_seqs = 2, .page_size = 1 << 20});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.failure().code, ErrorCode::out_of_memory);
  EXPECT_TRUE(made.failure().message.starts_with("num_pages=0: the keys and values of one "))
      << made.failure().message;
  EXPECT_EQ(model.device->free_bytes(), std::size_t{64} << 20) << "nothing is kept";
}

TEST_F(EnginesOnGpu, SessionsHaveTheLogitsOfOneAlone) {
  const LanguageModel model = on_gpu(kFile);
  const Tokens prompt = prompt_of(40, 3), next = prompt_of(60, 4);
  const auto vocab_size = static_cast<std::size_t>(model.decoder->config.vocab_size);
  const auto logits = [&] {
    Session session = std::move(Session::make(model, {.cache_dtype = DType::bf16}).value());
    std::vector<float> all;
    EXPECT_FALSE(session.append(prompt, nullptr));
    for (const std::int32_t& token : next) {
      const Status failed = session.append({&token, 1}, nullptr);
      if (failed) throw std::runtime_error(failed->message);
      all.insert(all.end(), session.logits(), session.logits() + vocab_size);
    }
    return all;
  };
  const std::vector<float> alone = logits();
  const auto repeat = [&] {
    for (int round = 0; round < kRounds; ++round) ASSERT_EQ(logits(), alone) << "round " << round;
  };
  run_together({repeat, repeat, repeat});
}

}  // namespace
}  // namespace headrace::engine
