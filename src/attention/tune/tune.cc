#include "attention/tune/tune.h"

#include <algorithm>
#include <chrono>

#include "attention/forward.h"
#include "backends/cuda/backend.h"

namespace headrace::tune {
namespace {

using Clock = std::chrono::steady_clock;

// Times calls of plans that share a workspace.
class Bench {
 public:
  Bench(const DeviceInfo& device, const AttentionArgs& args, Stream stream,
        const TuneOptions& options)
      : device_(device), args_(args), stream_(stream), options_(options) {}

  Status start() {
    if (device_.device_type != HEADRACE_CUDA) return std::nullopt;
    Result<cuda::Timer> timer = cuda::make_timer(device_.device_id);
    if (!timer.ok()) return std::move(timer.failure());
    timer_ = std::move(timer.value());
    return std::nullopt;
  }

  // Seconds of a call in a round. The first call is not counted if there is time for others.
  Result<double> round(const Plan& plan) {
    if (auto bad = workspace_.reserve(plan, stream_)) return std::move(*bad);
    Result<double> first = calls(plan, 1);
    if (!first.ok() || first.value() >= options_.round_seconds) return first;
    constexpr double kMostCalls = 1000;
    const auto num_calls = static_cast<int>(
        std::clamp(options_.round_seconds / std::max(first.value(), 1e-9), 1., kMostCalls));
    if (!options_.before_call) return calls(plan, num_calls);
    double fastest = first.value();
    for (int i = 0; i < num_calls; ++i) {
      Result<double> one = calls(plan, 1);
      if (!one.ok()) return one;
      fastest = std::min(fastest, one.value());
    }
    return fastest;
  }

 private:
  // Seconds of one of `num_calls` calls.
  Result<double> calls(const Plan& plan, int num_calls) {
    if (options_.before_call)
      if (auto bad = options_.before_call(stream_)) return std::move(*bad);
    const auto begin = Clock::now();
    if (timer_ != nullptr)
      if (auto bad = cuda::start_timer(timer_, stream_)) return std::move(*bad);
    for (int i = 0; i < num_calls; ++i)
      if (auto bad = run(plan, args_, workspace_.get(), stream_)) return std::move(*bad);
    const std::chrono::duration<double> elapsed = Clock::now() - begin;
    if (timer_ == nullptr) return elapsed.count() / num_calls;
    Result<double> seconds = cuda::stop_timer(timer_, stream_);
    if (seconds.ok()) seconds.value() /= num_calls;
    return seconds;
  }

  const DeviceInfo& device_;
  const AttentionArgs& args_;
  const Stream stream_;
  const TuneOptions& options_;
  OwnWorkspace workspace_;
  cuda::Timer timer_;
};

}  // namespace

Result<Found> tune_call(const Plan& plan, const AttentionArgs& args, Stream stream,
                        const TuneOptions& options) {
  Bench bench(plan.device, args, stream, options);
  if (auto bad = bench.start()) return std::move(*bad);
  return search(plan, options.search, [&](const Plan& one) { return bench.round(one); });
}

}  // namespace headrace::tune
