#include "probes/team.h"

#include <barrier>
#include <chrono>
#include <thread>
#include <vector>

namespace headrace::probes {

double time_team(int num_threads, const std::function<void(int)>& body) {
  using Clock = std::chrono::steady_clock;
  std::barrier start(num_threads);
  std::vector<Clock::time_point> begins(static_cast<std::size_t>(num_threads));
  std::vector<Clock::time_point> ends(begins.size());
  const auto member = [&](int index) {
    start.arrive_and_wait();
    begins[static_cast<std::size_t>(index)] = Clock::now();
    body(index);
    ends[static_cast<std::size_t>(index)] = Clock::now();
  };
  {
    std::vector<std::jthread> threads;
    for (int i = 1; i < num_threads; ++i) threads.emplace_back(member, i);
    member(0);
  }
  Clock::time_point begin = begins[0];
  Clock::time_point end = ends[0];
  for (const auto& time : begins) begin = std::min(begin, time);
  for (const auto& time : ends) end = std::max(end, time);
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace headrace::probes
