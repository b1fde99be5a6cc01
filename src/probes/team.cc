#include "probes/team.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <thread>
#include <vector>

namespace headrace::probes {
namespace {

// The CPUs that the calling thread may use; empty if they are not known.
std::vector<int> allowed_cpus(cpu_set_t& set) {
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  return cpus;
}

// Seconds that the calling thread has run.
double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

void pin_to(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  (void)sched_setaffinity(0, sizeof set, &set);
}

TeamTime time_team(int num_threads, const std::function<void(int)>& body) {
  using Clock = std::chrono::steady_clock;
  cpu_set_t before;
  const std::vector<int> cpus = allowed_cpus(before);
  const bool is_pinned = static_cast<std::size_t>(num_threads) <= cpus.size();
  std::barrier start(num_threads);
  std::vector<Clock::time_point> begins(static_cast<std::size_t>(num_threads));
  std::vector<Clock::time_point> ends(begins.size());
  std::vector<double> cpu_seconds(begins.size()), shares(begins.size());
  const auto member = [&](int index) {
    const auto i = static_cast<std::size_t>(index);
    if (is_pinned) pin_to(cpus[i]);
    start.arrive_and_wait();
    begins[i] = Clock::now();
    const double first = thread_seconds();
    body(index);
    cpu_seconds[i] = thread_seconds() - first;
    ends[i] = Clock::now();
    const double passed = std::chrono::duration<double>(ends[i] - begins[i]).count();
    shares[i] = passed > 0 ? std::min(cpu_seconds[i] / passed, 1.0) : 1.0;
  };
  {
    std::vector<std::jthread> threads;
    for (int i = 1; i < num_threads; ++i) threads.emplace_back(member, i);
    member(0);
  }
  if (is_pinned) (void)sched_setaffinity(0, sizeof before, &before);
  const auto begin = *std::min_element(begins.begin(), begins.end());
  const auto end = *std::max_element(ends.begin(), ends.end());
  return {.seconds = std::chrono::duration<double>(end - begin).count(),
          .cpu_seconds = *std::max_element(cpu_seconds.begin(), cpu_seconds.end()),
          .cpu_share = *std::min_element(shares.begin(), shares.end())};
}

}  // namespace headrace::probes
