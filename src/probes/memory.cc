// Bandwidth: every thread streams over memory of its own, through the caches or past them.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <new>

#include "probes/numa.h"
#include "probes/probes.h"
#include "probes/stream_loops.h"
#include "probes/team.h"

namespace headrace::probes {
namespace {

constexpr std::size_t kHugePage = 2 * 1024 * 1024;

std::size_t rounded_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

std::size_t positive_or(long value, std::size_t otherwise) {
  return value > 0 ? static_cast<std::size_t>(value) : otherwise;
}

std::size_t memory_bytes() {
  return positive_or(sysconf(_SC_PHYS_PAGES), 1) * positive_or(sysconf(_SC_PAGESIZE), 4096);
}

// At least 1, where there is no list.
int num_cpus_of(const std::string& list) {
  return std::max(static_cast<int>(cpus_of_list(list).size()), 1);
}

template <class T>
T read_file(const std::string& path, T otherwise) {
  std::ifstream file(path);
  T value;
  return file >> value ? value : otherwise;
}

}  // namespace

std::vector<CacheLevel> cache_levels() {
  // Linux knows which CPUs share a cache; sysconf() uses cpuid, which in a virtual machine may
  // describe the whole host.
  std::vector<CacheLevel> levels;
  for (int index = 0; index < 8; ++index) {
    const std::string folder =
        "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + '/';
    const std::string type = read_file<std::string>(folder + "type", "");
    const auto kib = read_file<std::size_t>(folder + "size", 0);  // "32K"
    if (type.empty() || type == "Instruction" || kib == 0) continue;
    levels.push_back(
        {.name = 'L' + read_file<std::string>(folder + "level", "?"),
         .bytes = kib * 1024,
         .num_cpus = num_cpus_of(read_file<std::string>(folder + "shared_cpu_list", ""))});
  }
  if (levels.empty())
    levels = {{"L1", 32 * 1024, 1}, {"L2", 512 * 1024, 1}, {"L3", 32 * 1024 * 1024, 4096}};
  return levels;
}

std::size_t last_level_cache_bytes() { return cache_levels().back().bytes; }

HugePages::HugePages(std::size_t bytes) : bytes_(rounded_up(bytes, kHugePage) + kHugePage) {
  mapped_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped_ == MAP_FAILED) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
  madvise(data(), bytes_ - kHugePage, MADV_HUGEPAGE);  // only a hint
#endif
}

HugePages::~HugePages() {
  if (mapped_ != nullptr) munmap(mapped_, bytes_);
}

unsigned char* HugePages::data() const {
  auto* first = static_cast<unsigned char*>(mapped_);
  const auto address = reinterpret_cast<std::uintptr_t>(first);
  return first + (rounded_up(address, kHugePage) - address);
}

StreamBuffer::StreamBuffer(int num_threads, std::size_t bytes_per_thread)
    : part_bytes_(rounded_up(bytes_per_thread, 2 * kStreamChunk)) {
  for (int i = 0; i < num_threads; ++i) parts_.emplace_back(part_bytes_);
  // Written by the reading thread: untouched pages all map to one zero page, and the first touch
  // determines the NUMA node.
  time_team(num_threads, [this](int index) {
    std::memset(parts_[static_cast<std::size_t>(index)].data(), index + 1, part_bytes_);
  });
}

TeamTime StreamBuffer::time(Operation operation, std::int64_t passes, bool bypasses_caches) const {
  const StreamLoops loops = widest_stream_loops(bypasses_caches);
  return time_team(static_cast<int>(parts_.size()), [&](int index) {
    unsigned char* part = parts_[static_cast<std::size_t>(index)].data();
    switch (operation) {
      case Operation::read:
        return loops.read(part, part_bytes_, passes);
      case Operation::write:
        return loops.write(part, part_bytes_, passes);
      case Operation::copy:
        return loops.copy(part, part_bytes_ / 2, passes);
    }
  });
}

double StreamBuffer::read() const {
  return static_cast<double>(total_bytes()) / time(Operation::read, 1, false).seconds * 1e-9;
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
  const StreamBuffer buffer(num_threads, stream_bytes_per_thread(num_threads));
  double best = 0;
  for (int round = 0; round < kRounds; ++round) best = std::max(best, buffer.read());
  return best;
}

}  // namespace headrace::probes
