#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "base/math.h"
#include "runtime/device.h"

namespace headrace {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Asks for huge pages where `data` fills them, so that a cache whose pages lie anywhere in it takes
// few entries of the TLB. The end of `data` stays in small ones, which take no more memory.
void advise_huge_pages(void* data, std::size_t bytes) {
#if defined(MADV_HUGEPAGE)
  madvise(data, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);  // only a hint
#endif
}

class HostDevice final : public Device {
 public:
  using Device::Device;

  Buffer allocate(std::size_t bytes) override {
    if (bytes > SIZE_MAX - kHugePage) return {};
    const std::size_t alignment = bytes < kHugePage ? kAlignment : kHugePage;
    void* data = std::aligned_alloc(alignment, round_up(bytes + 1, alignment));
    if (data == nullptr) return {};
    if (alignment == kHugePage) advise_huge_pages(data, bytes);
    return {std::shared_ptr<std::byte>(static_cast<std::byte*>(data), std::free), bytes};
  }

  Buffer upload(const void* data, std::size_t bytes) override {
    Buffer buffer = allocate(bytes);
    if (buffer.data() != nullptr && bytes > 0) std::memcpy(buffer.data(), data, bytes);
    return buffer;
  }

  Buffer allocate_host(std::size_t bytes) override { return allocate(bytes); }

  Status copy(std::span<const ByteCopy> copies, Stream) override {
    for (const ByteCopy& c : copies) std::memcpy(c.to, c.from, c.bytes);
    return std::nullopt;
  }

  Status download(const void* from, void* to, std::size_t bytes, Stream) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return std::nullopt;
  }
  Status synchronise(Stream) override { return std::nullopt; }

  // Memory that is overcommitted or swapped has no such number.
  std::size_t free_bytes() override { return SIZE_MAX; }
};

}  // namespace

std::unique_ptr<Device> make_host_device(const DeviceInfo& info) {
  return std::make_unique<HostDevice>(info);
}

}  // namespace headrace
