// Bytes in the memory of a device.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

namespace headrace {

// Copies share the bytes. The last one frees them, in the way of the device that allocated them.
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::shared_ptr<std::byte> data, std::size_t bytes)
      : data_(std::move(data)), bytes_(data_ == nullptr ? 0 : bytes) {}

  std::byte* data() const { return data_.get(); }  // null: no memory
  std::size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data());
  }

 private:
  std::shared_ptr<std::byte> data_;
  std::size_t bytes_ = 0;
};

}  // namespace headrace
