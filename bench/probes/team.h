// Threads that start together: the time is from the common start to the end of the last one.
#pragma once

#include <functional>

namespace headrace::probes {

// Runs body(0) ... body(num_threads - 1), each on its own thread. Returns seconds.
double time_team(int num_threads, const std::function<void(int)>& body);

}  // namespace headrace::probes
