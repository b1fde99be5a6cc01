// Measured peaks of a CPU: multiply-adds from registers, bandwidth and latency of every memory
// level. A benchmark measures them in its own run, so that both see the same clocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "probes/ceiling.h"
#include "probes/numa.h"
#include "probes/team.h"

namespace headrace::probes {

struct Peak {
  std::string isa;    // "avx2", "avx512", "avx512_bf16", "sse2", "neon"
  double gflops = 0;  // 2 per FMA, all threads together; 0: not available on this machine
};

// f32 FMAs with the widest vectors of this machine; best of several rounds.
Peak measure_f32_fma(int num_threads);
// bf16 dot products with f32 sums; gflops 0 if the machine has none.
Peak measure_bf16_dot(int num_threads);

// Every instruction set of this machine: f32 multiply-adds; bf16 and int8 dot products.
void add_compute_ceilings(int num_threads, const MeasureOptions& options,
                          std::vector<Ceiling>& ceilings);

// The clock that a chain of dependent additions shows, one cycle each, in Hz: of the slowest of the
// threads, the median of several rounds.
double measure_clock(int num_threads);

// A memory level, L1 first.
struct CacheLevel {
  std::string name;  // "L1"
  std::size_t bytes = 0;
  int num_cpus = 1;  // CPUs that share it
};
// Data caches as Linux describes those of the first CPU; guesses where it does not.
std::vector<CacheLevel> cache_levels();
std::size_t last_level_cache_bytes();

// Zeroed memory, aligned to 2 MiB and in huge pages where the system grants them, so that TLB
// misses stay out of a measurement. Throws std::bad_alloc.
class HugePages {
 public:
  explicit HugePages(std::size_t bytes);
  HugePages(HugePages&& other) noexcept
      : mapped_(std::exchange(other.mapped_, nullptr)), bytes_(other.bytes_) {}
  HugePages& operator=(HugePages&&) = delete;
  ~HugePages();
  unsigned char* data() const;

 private:
  void* mapped_;  // null after a move
  std::size_t bytes_;
};

// Per-thread memory to stream over: measures bandwidth and evicts caches. Throws std::bad_alloc.
class StreamBuffer {
 public:
  enum class Operation { read, write, copy };

  // bytes_per_thread is rounded up to a multiple of 1024.
  StreamBuffer(int num_threads, std::size_t bytes_per_thread);

  // All threads stream over their whole parts concurrently, `passes` times; a copy goes from the
  // first half of a part to the second. `bypasses_caches`: stores are non-temporal where the
  // machine has them.
  TeamTime time(Operation operation, std::int64_t passes, bool bypasses_caches) const;
  // All threads read their whole parts once. Returns GB/s (10^9 bytes).
  double read() const;
  // Bytes that a pass of any operation reads and writes.
  std::size_t total_bytes() const { return parts_.size() * part_bytes_; }

 private:
  std::vector<HugePages> parts_;
  std::size_t part_bytes_;
};

// A StreamBuffer size larger than all caches: a multiple of the last level cache, at most an eighth
// of the machine's memory.
std::size_t stream_bytes_per_thread(int num_threads);

// Best of several reads, GB/s (10^9 bytes) of all threads together.
double measure_read_bandwidth(int num_threads);

// Read, write and copy in every memory level.
void add_bandwidth_ceilings(int num_threads, const MeasureOptions& options,
                            std::vector<Ceiling>& ceilings);
// One dependent load in every memory level, by one thread.
void add_latency_ceilings(const MeasureOptions& options, std::vector<Ceiling>& ceilings);

// Read, write, copy and load by the calling thread from the memory of each of these nodes.
void add_node_ceilings(const std::vector<NumaNode>& nodes, const MeasureOptions& options,
                       std::vector<Ceiling>& ceilings);

// All of the above, for one thread and for num_threads; memory of other NUMA nodes than the first
// thread's, where there are several.
std::vector<Ceiling> measure_cpu(int num_threads, const MeasureOptions& options);

}  // namespace headrace::probes
