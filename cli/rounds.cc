#include "rounds.h"

#include <chrono>

namespace headrace::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double time(const TimedCall& call, Gpu* gpu) {
  if (gpu != nullptr) return gpu->time(call, true);
  const auto begin = Clock::now();
  call(nullptr);
  return seconds_since(begin);
}

}  // namespace

std::vector<std::vector<double>> time_in_rounds(const std::vector<TimedCall>& calls,
                                                const RoundOptions& options, Gpu* gpu) {
  constexpr int kMostRounds = 100000;
  for (const TimedCall& call : calls) time(call, gpu);
  std::vector<std::vector<double>> seconds(calls.size());
  const double min_time = options.min_time * static_cast<double>(calls.size());
  const auto begin = Clock::now();
  for (int round = 0;
       round < options.reps || (round < kMostRounds && seconds_since(begin) < min_time); ++round)
    for (std::size_t i = 0; i < calls.size(); ++i) seconds[i].push_back(time(calls[i], gpu));
  return seconds;
}

}  // namespace headrace::cli
