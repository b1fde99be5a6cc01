// A device that passes all calls on to another one. Tests override what they limit or count.
#pragma once

#include <memory>
#include <utility>

#include "runtime/device.h"

namespace headrace::testing {

class ForwardingDevice : public Device {
 public:
  explicit ForwardingDevice(std::unique_ptr<Device> to) : Device(to->info()), to_(std::move(to)) {}

  Buffer allocate(std::size_t bytes) override { return to_->allocate(bytes); }
  Buffer allocate_host(std::size_t bytes) override { return to_->allocate_host(bytes); }
  Buffer upload(const void* data, std::size_t bytes) override { return to_->upload(data, bytes); }
  Status copy(std::span<const ByteCopy> copies, Stream stream) override {
    return to_->copy(copies, stream);
  }
  Status download(const void* from, void* to, std::size_t bytes, Stream stream) override {
    return to_->download(from, to, bytes, stream);
  }
  Status synchronise(Stream stream) override { return to_->synchronise(stream); }
  std::size_t free_bytes() override { return to_->free_bytes(); }

 private:
  std::unique_ptr<Device> to_;
};

}  // namespace headrace::testing
