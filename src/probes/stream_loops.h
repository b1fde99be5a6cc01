// The inner loops of the bandwidth measurements, with the widest vectors of this machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace::probes {

inline constexpr std::size_t kStreamChunk = 512;  // bytes per iteration

// Each makes `passes` passes over `bytes` bytes at `data`, a multiple of kStreamChunk, aligned
// to 64.
struct StreamLoops {
  void (*read)(const unsigned char* data, std::size_t bytes, std::int64_t passes);
  void (*write)(unsigned char* data, std::size_t bytes, std::int64_t passes);
  // From data to data + bytes.
  void (*copy)(unsigned char* data, std::size_t bytes, std::int64_t passes);
};

// `bypasses_caches`: non-temporal stores, which need no read of the line that they write.
StreamLoops widest_stream_loops(bool bypasses_caches);

}  // namespace headrace::probes
