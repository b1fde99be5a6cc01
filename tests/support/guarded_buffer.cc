#include "support/guarded_buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace headrace::testing {
namespace {

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

// Aborts the test if memory cannot be set up.
void require(bool ok, const char* what) {
  if (ok) return;
  std::perror(what);
  std::abort();
}

// The live buffers by their first byte.
struct Registry {
  std::mutex mutex;
  std::map<const unsigned char*, std::size_t> inner;
};
Registry& registry() {
  static Registry living;
  return living;
}

}  // namespace

GuardedBuffer::GuardedBuffer(std::size_t bytes, Guard guard, unsigned char fill_byte)
    : bytes_(bytes) {
  const std::size_t page = page_bytes();
  inner_bytes_ = (bytes + page - 1) / page * page;
  void* map = mmap(nullptr, inner_bytes_ + 2 * page, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  require(map != MAP_FAILED, "mmap");
  map_ = static_cast<unsigned char*>(map);
  unsigned char* inner = map_ + page;
  make_writable();
  std::memset(inner, fill_byte, inner_bytes_);
  if (inner_bytes_ > 0) {
    const std::lock_guard lock(registry().mutex);
    registry().inner[inner] = inner_bytes_;
  }
  data_ = guard == Guard::before ? inner : inner + (inner_bytes_ - bytes);
}

GuardedBuffer::~GuardedBuffer() {
  if (map_ == nullptr) return;
  if (inner_bytes_ > 0) {
    const std::lock_guard lock(registry().mutex);
    registry().inner.erase(inner());
  }
  munmap(map_, inner_bytes_ + 2 * page_bytes());
}

unsigned char* GuardedBuffer::inner() const { return map_ + page_bytes(); }

std::span<unsigned char> guarded_bytes_around(const void* address) {
  const std::lock_guard lock(registry().mutex);
  const auto* at = static_cast<const unsigned char*>(address);
  auto next = registry().inner.upper_bound(at);
  if (next == registry().inner.begin()) return {};
  const auto& [first, bytes] = *--next;
  if (at >= first + bytes) return {};
  return {const_cast<unsigned char*>(first), bytes};
}

void GuardedBuffer::fill(unsigned char byte) {
  if (map_ != nullptr) std::memset(map_ + page_bytes(), byte, inner_bytes_);
}

void GuardedBuffer::make_read_only() {
  if (inner_bytes_ > 0)
    require(mprotect(map_ + page_bytes(), inner_bytes_, PROT_READ) == 0, "mprotect");
}

void GuardedBuffer::make_writable() {
  if (inner_bytes_ > 0)
    require(mprotect(map_ + page_bytes(), inner_bytes_, PROT_READ | PROT_WRITE) == 0, "mprotect");
}

std::ptrdiff_t GuardedBuffer::find_other_than(unsigned char byte) const {
  if (inner_bytes_ == 0) return -1;
  const unsigned char* inner = map_ + page_bytes();
  // All bytes equal: the first one is right and each equals its neighbour.
  if (inner[0] == byte && std::memcmp(inner, inner + 1, inner_bytes_ - 1) == 0) return -1;
  for (std::size_t i = 0; i < inner_bytes_; ++i)
    if (inner[i] != byte) return static_cast<std::ptrdiff_t>(i);
  return -1;
}

Written take_written(const headrace_tensor& view) {
  Written written;
  const std::size_t size = dtype_bytes(static_cast<DType>(view.dtype));
  unsigned char sentinel[8];
  std::memset(sentinel, kSentinelByte, sizeof sentinel);
  auto* base = static_cast<unsigned char*>(view.data);
  for_each_element(view, [&](std::int64_t idx) {
    unsigned char* element = base + idx * static_cast<std::int64_t>(size);
    if (std::memcmp(element, sentinel, size) == 0) ++written.untouched;
    written.bytes.insert(written.bytes.end(), element, element + size);
    std::memset(element, kSentinelByte, size);
  });
  return written;
}

}  // namespace headrace::testing
