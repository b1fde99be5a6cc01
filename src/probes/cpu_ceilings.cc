// All ceilings of a CPU: compute, bandwidth and latency, for one thread and for all.
#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <optional>

#include "probes/probes.h"
#include "probes/rounds.h"
#include "probes/team.h"

namespace headrace::probes {
namespace {

constexpr std::size_t kLineBytes = 64;
constexpr const char* kMemory = "DRAM";

// A level, and the bytes of a thread that lie in it and in no faster one.
struct WorkingSet {
  std::string name;
  std::size_t bytes_per_thread;
  bool is_memory = false;
};

// Half of a thread's share of a cache, but at least twice the faster level, which would hold it
// otherwise. Of the last cache, which other processes use too, at most four times the faster level.
std::vector<WorkingSet> working_sets(int num_threads) {
  std::vector<WorkingSet> sets;
  std::size_t below = 0;  // share of the faster level
  const std::vector<CacheLevel> levels = cache_levels();
  for (const CacheLevel& level : levels) {
    const bool is_last = &level == &levels.back();
    const auto sharers = static_cast<std::size_t>(std::min(num_threads, level.num_cpus));
    const std::size_t share = level.bytes / sharers;
    const std::size_t bytes = is_last && below > 0 ? std::min(share / 4, 4 * below) : share / 2;
    sets.push_back({level.name, std::max(bytes, 2 * below)});
    below = share;
  }
  const std::size_t missing = 8 * levels.back().bytes / static_cast<std::size_t>(num_threads);
  sets.push_back({kMemory, std::min(missing, stream_bytes_per_thread(num_threads)), true});
  return sets;
}

void add_bandwidth(const WorkingSet& set, const StreamBuffer& buffer, int num_threads,
                   const MeasureOptions& options, std::vector<Ceiling>& ceilings) {
  using Operation = StreamBuffer::Operation;
  constexpr std::pair<Operation, const char*> kOperations[] = {
      {Operation::read, "read"}, {Operation::write, "write"}, {Operation::copy, "copy"}};
  for (const auto& [operation, name] : kOperations) {
    const auto time = [&](std::int64_t passes) {
      return buffer.time(operation, passes, set.is_memory);
    };
    const Rounds rounds = measure_team(CeilingKind::bandwidth,
                                       static_cast<double>(buffer.total_bytes()), 1, options, time);
    ceilings.push_back({.kind = CeilingKind::bandwidth,
                        .resource = set.name,
                        .operation = name,
                        .num_units = num_threads,
                        .value = rounds.median,
                        .best = rounds.best,
                        .clock_hz = measure_clock(num_threads),
                        .bytes = static_cast<std::int64_t>(buffer.total_bytes())});
  }
}

// One pointer a cache line, linked into one random cycle (Sattolo's algorithm) so that no
// prefetcher can guess the next.
class PointerCycle {
 public:
  explicit PointerCycle(std::size_t bytes)
      : bytes_(std::max(bytes, 2 * kLineBytes)), pages_(bytes_), first_(pages_.data()) {
    std::vector<std::uint32_t> order(bytes_ / kLineBytes);
    std::iota(order.begin(), order.end(), 0u);
    std::uint64_t state = 0x9E3779B97F4A7C15u;
    for (std::size_t i = order.size() - 1; i > 0; --i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      std::swap(order[i], order[(state >> 33) % i]);
    }
    for (std::size_t i = 0; i < order.size(); ++i) line(i) = &line(order[i]);
  }

  std::size_t bytes() const { return bytes_; }
  std::int64_t num_lines() const { return static_cast<std::int64_t>(bytes_ / kLineBytes); }

  // `steps` loads, each from the address that the one before loaded.
  TeamTime time(std::int64_t steps) {
    return time_team(1, [&](int) {
      void* at = next_ == nullptr ? first_ : next_;
      for (std::int64_t step = 0; step < steps; ++step) {
        at = *static_cast<void**>(at);
        asm volatile("" : "+r"(at));
      }
      next_ = at;
    });
  }

 private:
  void*& line(std::size_t index) { return *reinterpret_cast<void**>(first_ + kLineBytes * index); }

  std::size_t bytes_;
  HugePages pages_;
  unsigned char* first_;
  void* next_ = nullptr;  // where the last round ended
};

// first_loads: at least, of a round.
void add_latency(const std::string& name, PointerCycle& cycle, std::int64_t first_loads,
                 const MeasureOptions& options, std::vector<Ceiling>& ceilings) {
  const Rounds rounds = measure_team(CeilingKind::latency, 1, first_loads, options,
                                     [&](std::int64_t steps) { return cycle.time(steps); });
  ceilings.push_back({.kind = CeilingKind::latency,
                      .resource = name,
                      .operation = "load",
                      .value = rounds.median,
                      .best = rounds.best,
                      .clock_hz = measure_clock(1),
                      .bytes = static_cast<std::int64_t>(cycle.bytes())});
}

constexpr std::int64_t kFirstLoads = 1 << 14;

// The nodes that the first thread of a team is not on.
std::vector<NumaNode> remote_nodes() {
  std::vector<NumaNode> nodes = numa_nodes();
  const auto first_cpu = [](const NumaNode& node) { return node.cpus.front(); };
  const auto own = std::ranges::min_element(nodes, {}, first_cpu);
  if (own != nodes.end()) nodes.erase(own);
  return nodes;
}

}  // namespace

void add_node_ceilings(const std::vector<NumaNode>& nodes, const MeasureOptions& options,
                       std::vector<Ceiling>& ceilings) {
  for (const NumaNode& node : nodes) {
    const WorkingSet set{"node " + std::to_string(node.id), working_sets(1).back().bytes_per_thread,
                         true};
    std::optional<StreamBuffer> buffer;
    run_on(node.cpus.front(), [&] { buffer.emplace(1, set.bytes_per_thread); });
    add_bandwidth(set, *buffer, 1, options, ceilings);
    buffer.reset();
    std::optional<PointerCycle> cycle;
    run_on(node.cpus.front(), [&] { cycle.emplace(set.bytes_per_thread); });
    add_latency(set.name, *cycle, kFirstLoads, options, ceilings);
  }
}

void add_bandwidth_ceilings(int num_threads, const MeasureOptions& options,
                            std::vector<Ceiling>& ceilings) {
  for (const WorkingSet& set : working_sets(num_threads))
    add_bandwidth(set, StreamBuffer(num_threads, set.bytes_per_thread), num_threads, options,
                  ceilings);
}

void add_latency_ceilings(const MeasureOptions& options, std::vector<Ceiling>& ceilings) {
  for (const WorkingSet& set : working_sets(1)) {
    PointerCycle cycle(set.bytes_per_thread);
    // A round in a cache goes at least once around; the first brings the lines in.
    const std::int64_t first_loads = std::max(set.is_memory ? 0 : cycle.num_lines(), kFirstLoads);
    if (!set.is_memory) (void)cycle.time(first_loads);
    add_latency(set.name, cycle, first_loads, options, ceilings);
  }
}

std::vector<Ceiling> measure_cpu(int num_threads, const MeasureOptions& options) {
  std::vector<Ceiling> ceilings;
  for (const int threads : {1, num_threads}) {
    add_compute_ceilings(threads, options, ceilings);
    add_bandwidth_ceilings(threads, options, ceilings);
    if (num_threads == 1) break;
  }
  add_latency_ceilings(options, ceilings);
  add_node_ceilings(remote_nodes(), options, ceilings);
  return ceilings;
}

}  // namespace headrace::probes
