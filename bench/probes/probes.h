// Measured peaks of this machine: FMAs from registers and reads from memory. A benchmark measures
// them in its own run, so that both see the same clocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace headrace::probes {

struct Peak {
  std::string isa;    // "avx2", "avx512", "avx512_bf16", "baseline"
  double gflops = 0;  // 2 per FMA, all threads together; 0: not available on this machine
};

// f32 FMAs with the widest vectors of this machine.
Peak measure_f32_fma(int num_threads);
// bf16 dot products with f32 sums; gflops 0 if the machine has none.
Peak measure_bf16_dot(int num_threads);

// Size of the last level cache; 32 MiB if unknown.
std::size_t last_level_cache_bytes();

// Per-thread memory to stream over: measures reads and evicts caches.
class StreamBuffer {
 public:
  StreamBuffer(int num_threads, std::size_t bytes_per_thread);
  ~StreamBuffer();
  StreamBuffer(const StreamBuffer&) = delete;
  StreamBuffer& operator=(const StreamBuffer&) = delete;

  // All threads read their whole parts concurrently. Returns GB/s (10^9 bytes).
  double read();
  std::size_t total_bytes() const { return parts_.size() * part_bytes_; }

 private:
  std::vector<unsigned char*> parts_;
  std::size_t part_bytes_;
};

// A StreamBuffer size larger than all caches: a multiple of the last level cache, at most an eighth
// of the machine's memory.
std::size_t stream_bytes_per_thread(int num_threads);

// Best of several reads, GB/s (10^9 bytes) of all threads together.
double measure_read_bandwidth(int num_threads);

}  // namespace headrace::probes
