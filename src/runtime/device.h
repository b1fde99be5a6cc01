// Memory of a device and copies into it.
#pragma once

#include <cstddef>
#include <memory>

#include "core/device.h"
#include "runtime/buffer.h"

namespace headrace {

// Thread-safe.
class Device {
 public:
  explicit Device(const DeviceInfo& info) : info_(info) {}
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const DeviceInfo& info() const { return info_; }

  // Uninitialised, aligned to 64 bytes. Buffer::data() is null if the allocation fails, so that the
  // caller's message can name the purpose of the memory. Pages are backed when they are written.
  virtual Buffer allocate(std::size_t bytes) = 0;
  // A copy of host memory; null as in allocate().
  virtual Buffer upload(const void* data, std::size_t bytes) = 0;

 private:
  const DeviceInfo info_;
};

// The host: device_type HEADRACE_CPU.
std::unique_ptr<Device> make_host_device(const DeviceInfo& info);

}  // namespace headrace
