#include "probes/numa.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <future>

#include "probes/team.h"

namespace headrace::probes {
namespace {

constexpr int kMaxNodes = 1024;  // CONFIG_NODES_SHIFT of Linux is 10 at most

}  // namespace

std::vector<int> cpus_of_list(const std::string& list) {
  std::vector<int> cpus;
  for (const char* at = list.c_str(); *at != '\0';) {
    char* end = nullptr;
    const long first = std::strtol(at, &end, 10);
    if (end == at) break;
    long last = first;
    if (*end == '-') last = std::strtol(end + 1, &end, 10);
    for (long cpu = std::max(first, 0L); cpu <= std::min(last, CPU_SETSIZE - 1L); ++cpu)
      cpus.push_back(static_cast<int>(cpu));
    at = *end == ',' ? end + 1 : end;
  }
  return cpus;
}

std::vector<NumaNode> numa_nodes(const std::string& folder) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::vector<NumaNode> nodes;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return nodes;
  for (int id = 0; id < kMaxNodes; ++id) {
    std::ifstream file(folder + "/node" + std::to_string(id) + "/cpulist");
    std::string list;
    if (!(file >> list)) continue;  // ids may have gaps; nodes of memory alone have no CPUs
    NumaNode node{.id = id, .cpus = cpus_of_list(list)};
    std::erase_if(node.cpus, [&](int cpu) { return !CPU_ISSET(cpu, &allowed); });
    if (!node.cpus.empty()) nodes.push_back(std::move(node));
  }
  return nodes;
}

void run_on(int cpu, const std::function<void()>& body) {
  std::async(std::launch::async, [&] {
    pin_to(cpu);
    body();
  }).get();
}

}  // namespace headrace::probes
