// Counters of a call in its workspace, which may hold anything (call_counters.cuh).
#pragma once

namespace headrace::cuda::sm90 {

struct alignas(16) CounterWords {
  unsigned long long mark;
  int next, num_closed;
};

}  // namespace headrace::cuda::sm90
