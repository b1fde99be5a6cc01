// Memory of a device, and copies into it and within it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/device.h"
#include "core/kernel.h"
#include "runtime/buffer.h"

namespace headrace {

// `bytes` bytes to copy between ranges that do not overlap.
struct ByteCopy {
  const std::byte* from;
  std::byte* to;
  std::size_t bytes;
};

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
  // A copy of host memory, complete for work of every stream; null as in allocate().
  virtual Buffer upload(const void* data, std::size_t bytes) = 0;

  // Memory of the host that copy() reaches without a detour: page-locked on a GPU. Null like
  // allocate().
  virtual Buffer allocate_host(std::size_t bytes) = 0;
  // Copies one range after the other, so that a later copy may read what an earlier one wrote.
  // Every range lies in memory of this device or of allocate_host(). The copies are work of
  // `stream`: the call returns when they are enqueued. The list may be discarded then.
  virtual Status copy(std::span<const ByteCopy> copies, Stream stream) = 0;
  // Copies memory of this device to any memory of the host, behind the work of `stream`, and
  // returns when it is there.
  virtual Status download(const void* from, void* to, std::size_t bytes, Stream stream) = 0;
  // Returns when the work of `stream` has ended.
  virtual Status synchronise(Stream stream) = 0;

  // Bytes that allocate() has left; SIZE_MAX if the device does not say.
  virtual std::size_t free_bytes() = 0;

 private:
  const DeviceInfo info_;
};

// The host: device_type HEADRACE_CPU.
std::unique_ptr<Device> make_host_device(const DeviceInfo& info);

}  // namespace headrace
