// Device memory.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

namespace headrace {

// Copies share the memory; the last one frees it with the deleter of its device.
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::shared_ptr<std::byte> data, std::size_t bytes)
      : data_(std::move(data)), bytes_(data_ == nullptr ? 0 : bytes) {}

  std::byte* data() const { return data_.get(); }  // null: empty, or the allocation failed
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
