#include "probes/numa.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>
#include <new>

#include "probes/probes.h"
#include "tests/support/temporary_folder.h"

namespace headrace::probes {
namespace {

using Cpus = std::vector<int>;

TEST(Numa, ListsOfCpus) {
  EXPECT_EQ(cpus_of_list("0-3,8"), (Cpus{0, 1, 2, 3, 8}));
  EXPECT_EQ(cpus_of_list("5"), Cpus{5});
  EXPECT_EQ(cpus_of_list(""), Cpus{});
  EXPECT_EQ(cpus_of_list("2,x,4"), Cpus{2});
  EXPECT_EQ(cpus_of_list("7-6"), Cpus{});
  EXPECT_LE(cpus_of_list("0-99999999999").size(), std::size_t{CPU_SETSIZE});
}

// Gaps between ids, a node of memory alone, and one whose CPUs the process may not use.
TEST(Numa, NodesOfAFolder) {
  const testing::TemporaryFolder folder;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  Cpus cpus;
  int absent = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed))
      cpus.push_back(cpu);
    else
      absent = cpu;
  }
  const auto add = [&](const std::string& node, const std::string& list) {
    std::filesystem::create_directory(folder.file(node));
    std::ofstream(folder.file(node + "/cpulist")) << list << '\n';
  };
  add("node0", std::to_string(cpus.front()));
  add("node1", "");
  add("node2", std::to_string(absent));
  add("node5", std::to_string(cpus.back()) + ',' + std::to_string(absent));
  const std::vector<NumaNode> nodes = numa_nodes(folder.file(""));
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[0].id, 0);
  EXPECT_EQ(nodes[0].cpus, Cpus{cpus.front()});
  EXPECT_EQ(nodes[1].id, 5);
  EXPECT_EQ(nodes[1].cpus, Cpus{cpus.back()});
  EXPECT_TRUE(numa_nodes(folder.file("absent")).empty());
}

TEST(Numa, RunsOnTheCpu) {
  for (const NumaNode& node : numa_nodes())
    for (const int cpu : node.cpus) {
      int ran_on = -1;
      run_on(cpu, [&] { ran_on = sched_getcpu(); });
      EXPECT_EQ(ran_on, cpu);
    }
}

// No memory, as one exception of many.
TEST(Numa, ThrowsWhatItRunsThrows) {
  EXPECT_THROW(run_on(0, [] { throw std::bad_alloc(); }), std::bad_alloc);
}

// This machine's last CPU as another node: every operation, of memory.
TEST(Numa, MeasuresAnotherNode) {
  const std::vector<NumaNode> nodes = numa_nodes();
  if (nodes.empty()) GTEST_SKIP() << "Linux describes no NUMA nodes here";
  std::vector<Ceiling> ceilings;
  add_node_ceilings({{.id = 3, .cpus = {nodes.back().cpus.back()}}},
                    {.num_rounds = 1, .round_seconds = 1e-3}, ceilings);
  const char* const operations[] = {"read", "write", "copy", "load"};
  ASSERT_EQ(ceilings.size(), std::size(operations));
  for (std::size_t i = 0; i < ceilings.size(); ++i) {
    EXPECT_EQ(ceilings[i].resource, "node 3");
    EXPECT_EQ(ceilings[i].operation, operations[i]);
    EXPECT_EQ(ceilings[i].num_units, 1);
    EXPECT_GT(ceilings[i].value, 0);
  }
}

}  // namespace
}  // namespace headrace::probes
