// Reads from memory: every thread sums its own buffer, far larger than the caches.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <new>
#include <string>

#include "probes/probes.h"
#include "probes/team.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace headrace::probes {
namespace {

constexpr std::size_t kChunk = 512;  // bytes per iteration of the loops below
constexpr std::size_t kHugePage = 2 * 1024 * 1024;

inline void keep(std::uint64_t value) { asm volatile("" : : "r"(value)); }

void read_baseline(const unsigned char* data, std::size_t bytes) {
  typedef std::uint64_t Vec __attribute__((vector_size(16)));
  Vec sums[4] = {};
  for (std::size_t offset = 0; offset < bytes; offset += kChunk) {
    for (std::size_t i = 0; i < kChunk; i += sizeof(Vec)) {
      Vec value;
      std::memcpy(&value, data + offset + i, sizeof value);
      sums[i / sizeof(Vec) % 4] += value;
    }
  }
  const Vec sum = sums[0] + sums[1] + sums[2] + sums[3];
  keep(sum[0] + sum[1]);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void read_avx2(const unsigned char* data, std::size_t bytes) {
  __m256i sums[8];
  for (auto& sum : sums) sum = _mm256_setzero_si256();
  for (std::size_t offset = 0; offset < bytes; offset += kChunk) {
    const auto* chunk = reinterpret_cast<const __m256i*>(data + offset);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i)
      sums[i % 8] = _mm256_add_epi64(sums[i % 8], _mm256_load_si256(chunk + i));
  }
  for (const auto& sum : sums) keep(static_cast<std::uint64_t>(_mm256_extract_epi64(sum, 0)));
}

__attribute__((target("avx512f"))) void read_avx512(const unsigned char* data, std::size_t bytes) {
  __m512i sums[8];
  for (auto& sum : sums) sum = _mm512_setzero_si512();
  for (std::size_t offset = 0; offset < bytes; offset += kChunk) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i)
      sums[i] = _mm512_add_epi64(sums[i], _mm512_load_si512(data + offset + 64 * i));
  }
  alignas(64) std::uint64_t lanes[8];
  for (const auto& sum : sums) {
    _mm512_store_si512(lanes, sum);
    keep(lanes[0]);
  }
}
#endif

using Read = void (*)(const unsigned char*, std::size_t);
Read widest_read() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return read_avx512;
  if (__builtin_cpu_supports("avx2")) return read_avx2;
#endif
  return read_baseline;
}

std::size_t positive_or(long value, std::size_t otherwise) {
  return value > 0 ? static_cast<std::size_t>(value) : otherwise;
}

std::size_t memory_bytes() {
  return positive_or(sysconf(_SC_PHYS_PAGES), 1) * positive_or(sysconf(_SC_PAGESIZE), 4096);
}

}  // namespace

std::size_t last_level_cache_bytes() {
  constexpr std::size_t kGuess = 32 * 1024 * 1024;
  // Linux knows which CPUs share the cache; sysconf() uses cpuid, which in a virtual machine may
  // describe the whole host.
  for (int level = 3; level >= 2; --level) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(level) +
                       "/size");
    std::size_t kib = 0;
    if (file >> kib && kib > 0) return kib * 1024;
  }
#if defined(_SC_LEVEL3_CACHE_SIZE)
  return positive_or(sysconf(_SC_LEVEL3_CACHE_SIZE), kGuess);
#else
  return kGuess;
#endif
}

StreamBuffer::StreamBuffer(int num_threads, std::size_t bytes_per_thread)
    : parts_(static_cast<std::size_t>(num_threads)),
      part_bytes_((bytes_per_thread + kHugePage - 1) / kHugePage * kHugePage) {
  for (auto& part : parts_) {
    void* memory =
        mmap(nullptr, part_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
    madvise(memory, part_bytes_,
            MADV_HUGEPAGE);  // only a hint; keeps TLB misses out of the measurement
#endif
    part = static_cast<unsigned char*>(memory);
  }
  // Written by the reading thread: untouched pages all map to one zero page, and the first touch
  // determines the NUMA node.
  time_team(num_threads, [this](int index) {
    std::memset(parts_[static_cast<std::size_t>(index)], index + 1, part_bytes_);
  });
}

StreamBuffer::~StreamBuffer() {
  for (unsigned char* part : parts_) munmap(part, part_bytes_);
}

double StreamBuffer::read() {
  const Read read_part = widest_read();
  const double seconds = time_team(static_cast<int>(parts_.size()), [&](int index) {
    read_part(parts_[static_cast<std::size_t>(index)], part_bytes_);
  });
  return static_cast<double>(total_bytes()) / seconds * 1e-9;
}

std::size_t stream_bytes_per_thread(int num_threads) {
  constexpr std::size_t kUsual = 512 * 1024 * 1024;
  const auto threads = static_cast<std::size_t>(std::max(num_threads, 1));
  const std::size_t enough = std::max(kUsual, 8 * last_level_cache_bytes() / threads);
  const std::size_t allowed = memory_bytes() / 8 / threads;
  return std::max(std::min(enough, allowed), kHugePage);
}

double measure_read_bandwidth(int num_threads) {
  constexpr int kRounds = 5;
  StreamBuffer buffer(num_threads, stream_bytes_per_thread(num_threads));
  double best = 0;
  for (int round = 0; round < kRounds; ++round) best = std::max(best, buffer.read());
  return best;
}

}  // namespace headrace::probes
