// Threads that start together: the time is from the common start to the end of the last one.
#pragma once

#include <functional>

namespace headrace::probes {

// The calling thread. Pinning is a hint: a measurement on a thread that moves is worse, not wrong.
void pin_to(int cpu);

struct TeamTime {
  double seconds = 0;
  // CPU time of the thread with the highest. That of a CPU-bound body on an idle machine; a thread
  // that waits for its turn beside other processes does not count it.
  double cpu_seconds = 0;
  // CPU time over elapsed time, of the thread with the lowest: below 1 where other processes ran.
  double cpu_share = 1;
};

// Runs body(0) ... body(num_threads - 1), each on its own thread, the first on the caller's. Each
// is pinned to a CPU of its own where the caller may use so many; the caller's affinity is
// restored.
TeamTime time_team(int num_threads, const std::function<void(int)>& body);

}  // namespace headrace::probes
