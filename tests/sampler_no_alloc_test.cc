// Sampler::sample() allocates nothing after its first call: counts every operator new of the
// program. Also prints the cost of a token.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <utility>
#include <vector>

#include "ops/sampling.h"
#include "tests/support/random.h"

static std::atomic<long> num_allocations{0};

void* operator new(std::size_t bytes) {
  ++num_allocations;
  void* const memory = std::malloc(bytes > 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

using namespace headrace;

struct Case {
  const char* name;
  SamplingOptions options;
};

std::vector<Case> cases() {
  std::vector<Case> all = {
      {"greedy", {.temperature = 0}},
      {"greedy, logprobs 5", {.temperature = 0, .num_logprobs = 5}},
      {"temperature", {}},
      {"top_k 40", {.top_k = 40}},
      {"top_p 0.9", {.top_p = 0.9}},
      {"min_p 0.05", {.min_p = 0.05}},
      {"top_k 40, top_p 0.95, min_p 0.05, temperature 0.8",
       {.temperature = 0.8, .top_k = 40, .top_p = 0.95, .min_p = 0.05}},
      {"penalties, top_p 0.9",
       {.top_p = 0.9,
        .repetition_penalty = 1.1,
        .presence_penalty = 0.1,
        .frequency_penalty = 0.1}},
      {"top_k 5000, logprobs 20", {.top_k = 5000, .num_logprobs = 20}},
  };
  for (const SamplingOrder order : {SamplingOrder::transformers, SamplingOrder::llama_cpp}) {
    all.push_back(all[6]);
    all.back().options.order = order;
  }
  return all;
}

int run(std::size_t vocab_size, double spread) {
  testing::Random random(1);
  std::vector<float> logits(vocab_size);
  for (float& logit : logits) logit = static_cast<float>(random.normal() * spread);
  std::vector<std::int32_t> history(1000);
  for (auto& token : history)
    token = static_cast<std::int32_t>(random.between(0, static_cast<std::int64_t>(vocab_size) - 1));
  Sampler sampler = std::move(Sampler::make(cpu_info().value()).value());
  SamplingInput input{.logits = logits, .prompt = history, .output = history};
  if (!sampler.sample(input, {}).ok()) return 1;
  std::printf("%zu logits, standard deviation %g\n", vocab_size, spread);
  for (const Case& test_case : cases()) {
    constexpr int kRepeats = 20;
    const long before = num_allocations;
    double best = 1e9;
    for (int i = 0; i < kRepeats; ++i) {
      input.position = i;
      const auto start = std::chrono::steady_clock::now();
      if (!sampler.sample(input, test_case.options).ok()) return 1;
      const std::chrono::duration<double, std::micro> taken =
          std::chrono::steady_clock::now() - start;
      best = std::min(best, taken.count());
    }
    std::printf("  %8.1f us  %s\n", best, test_case.name);
    if (num_allocations != before) {
      std::printf("FAILED: %ld allocations\n", num_allocations - before);
      return 1;
    }
  }
  return 0;
}

}  // namespace

int main() {
  const int failed = run(49152, 2.5) + run(151936, 2.5) + run(151936, 0.01);
  return failed == 0 && num_allocations > 0 ? 0 : 1;
}
