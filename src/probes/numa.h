// NUMA nodes of a CPU: memory that a thread reads from another node than its own.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace headrace::probes {

// The CPUs of a list as Linux writes them, "0-3,8"; what follows an error is left out.
std::vector<int> cpus_of_list(const std::string& list);

struct NumaNode {
  int id = 0;
  std::vector<int> cpus;  // that the calling thread may use
};
// Nodes with such CPUs, by id. Empty where Linux describes none.
std::vector<NumaNode> numa_nodes(const std::string& folder = "/sys/devices/system/node");

// Runs body() on a thread of this CPU: memory that it touches first is that of the CPU's node.
// Throws what body() throws.
void run_on(int cpu, const std::function<void()>& body);

}  // namespace headrace::probes
