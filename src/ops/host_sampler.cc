#include "ops/host_sampler.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <utility>

#include "backends/cpu/thread_pool.h"

namespace headrace {
namespace {

// Bounds the memory of samplers: some MB each for the largest vocabularies.
constexpr int kMaxWorkers = 16;

}  // namespace

Result<HostSampler> HostSampler::make(const DeviceInfo& host) {
  std::vector<Sampler> samplers;
  for (int i = 0; i < std::clamp(host.num_units, 1, kMaxWorkers); ++i) {
    Result<Sampler> sampler = Sampler::make(host);
    if (!sampler.ok()) return std::move(sampler.failure());
    samplers.push_back(std::move(sampler.value()));
  }
  return HostSampler(std::move(samplers));
}

Status HostSampler::draw(const float* logits, std::int64_t vocab_size, std::span<RowDraw> draws) {
  struct Draws {
    std::vector<Sampler>& samplers;
    const float* logits;
    std::int64_t vocab_size;
    std::span<RowDraw> draws;
    std::atomic<bool> lacks_memory = false;
  } all{samplers_, logits, vocab_size, draws};
  const auto run = [](void* context, std::int64_t task, int worker) {
    auto& [samplers, from, size, of_step, lacks_memory] = *static_cast<Draws*>(context);
    RowDraw& draw = of_step[static_cast<std::size_t>(task)];
    SamplingInput input = draw.input;
    input.logits = {from + draw.row * size, static_cast<std::size_t>(size)};
    try {
      Result<Sample> drawn =
          samplers[static_cast<std::size_t>(worker)].sample(input, *draw.options);
      if (!drawn.ok()) {
        draw.failure = std::move(drawn.failure());
        return;
      }
      const Sample& sample = drawn.value();
      draw.top_logprobs.assign(sample.top_logprobs.begin(), sample.top_logprobs.end());
      draw.logprob = sample.logprob;
      draw.token = sample.token;
    } catch (const std::bad_alloc&) {
      lacks_memory = true;
    }
  };
  HEADRACE_TRY(cpu::parallel_for(std::ssize(draws), static_cast<int>(samplers_.size()), run, &all));
  if (all.lacks_memory) throw std::bad_alloc();
  return std::nullopt;
}

}  // namespace headrace
