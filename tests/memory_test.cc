// A call needs O(1) memory in addition to inputs and outputs: the peak resident set grows by at
// most 8 MiB during a call, for 4096 and for 65536 keys. The score matrix would take 64 MiB and 16
// GiB per head.
#include <malloc.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "headrace/headrace.hpp"

namespace {

constexpr long kMaxGrowthKib = 8 * 1024;

// "VmHWM:   12345 kB"; -1 if absent.
long status_kib(const char* key) {
  std::FILE* file = std::fopen("/proc/self/status", "r");
  if (file == nullptr) return -1;
  char line[256];
  long kib = -1;
  while (std::fgets(line, sizeof line, file) != nullptr)
    if (std::strncmp(line, key, std::strlen(key)) == 0)
      std::sscanf(line + std::strlen(key), ": %ld", &kib);
  std::fclose(file);
  return kib;
}

// Resets VmHWM.
bool reset_peak() {
  std::FILE* file = std::fopen("/proc/self/clear_refs", "w");
  if (file == nullptr) return false;
  const bool is_written = std::fputs("5", file) >= 0;
  return std::fclose(file) == 0 && is_written;
}

struct Case {
  headrace::DType dtype;
  long seqlen_q, seqlen_k, num_heads, head_dim;
};

int measure(const Case& c) {
  using namespace headrace;
  const auto bytes = [&](long seqlen) {
    return static_cast<std::size_t>(seqlen * c.num_heads * c.head_dim) * dtype_bytes(c.dtype);
  };
  std::vector<char> q(bytes(c.seqlen_q), 1), k(bytes(c.seqlen_k), 1), v(bytes(c.seqlen_k), 1),
      out(bytes(c.seqlen_q), 1);
  const auto view = [&](std::vector<char>& x, long seqlen) {
    return TensorView(x.data(), c.dtype, {1, seqlen, c.num_heads, c.head_dim});
  };
  const TensorView views[] = {view(q, c.seqlen_q), view(k, c.seqlen_k), view(v, c.seqlen_k),
                              view(out, c.seqlen_q)};
  malloc_trim(0);  // return freed memory, so that reuse counts
  if (!reset_peak()) {
    std::printf("skipped: this system cannot reset the peak resident set\n");
    return 0;
  }
  const long before = status_kib("VmRSS");
  attention_forward(views[0], views[1], views[2], views[3], {}, {.causal = Causal::bottom_right});
  const long growth = status_kib("VmHWM") - before;
  std::printf("seqlen_q %ld, seqlen_k %ld, %ld heads, head_dim %ld: %ld KiB more at the peak\n",
              c.seqlen_q, c.seqlen_k, c.num_heads, c.head_dim, growth);
  return before < 0 || growth > kMaxGrowthKib ? 1 : 0;
}

}  // namespace

int main() {
  using headrace::DType;
  // The first call starts the threads, whose stacks would count.
  const Case cases[] = {
      {DType::f32, 4096, 4096, 8, 128},  {DType::bf16, 4096, 4096, 8, 128},
      {DType::f32, 65536, 65536, 1, 16}, {DType::bf16, 256, 65536, 8, 128},
      {DType::f32, 1, 65536, 32, 128},
  };
  int num_failed = 0;
  for (const Case& c : cases) num_failed += measure(c);
  return num_failed == 0 ? 0 : 1;
}
