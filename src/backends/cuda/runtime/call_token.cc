#include "backends/cuda/runtime/call_token.h"

#include <atomic>
#include <chrono>

namespace headrace::cuda {

std::uint64_t next_call_token() {
  static std::atomic<std::uint64_t> next{static_cast<std::uint64_t>(
      std::chrono::system_clock::now().time_since_epoch() / std::chrono::nanoseconds(1))};
  return next.fetch_add(1, std::memory_order_relaxed) & (~std::uint64_t{0} >> 2);
}

}  // namespace headrace::cuda
