// Times several calls in alternating rounds, so that all see the same clock frequencies.
#pragma once

#include <functional>
#include <vector>

#include "gpu.h"

namespace headrace::cli {

// Enqueues a call on `stream`; on a CPU (stream nullptr) it is done on return.
using TimedCall = std::function<void(void* stream)>;

struct RoundOptions {
  int reps = 15;        // least number of rounds
  double min_time = 0;  // seconds, least time of the rounds per call
};

// Seconds of each call in each round, [call][round]. An untimed round comes first. On a GPU the L2
// is flushed before each call. gpu nullptr: calls of a CPU.
std::vector<std::vector<double>> time_in_rounds(const std::vector<TimedCall>& calls,
                                                const RoundOptions& options, Gpu* gpu);

}  // namespace headrace::cli
