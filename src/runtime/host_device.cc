#include <cstdlib>
#include <cstring>

#include "base/math.h"
#include "runtime/device.h"

namespace headrace {
namespace {

constexpr std::size_t kAlignment = 64;

class HostDevice final : public Device {
 public:
  using Device::Device;

  Buffer allocate(std::size_t bytes) override {
    if (bytes > SIZE_MAX - kAlignment) return {};
    void* data = std::aligned_alloc(kAlignment, round_up(bytes + 1, kAlignment));
    if (data == nullptr) return {};
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
