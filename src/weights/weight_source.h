// The bytes of a model file's tensors: one tensor at a time, or parts of it by several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/error.h"
#include "core/aligned.h"
#include "weights/model_file.h"

namespace headrace {

class WeightSource {
 public:
  // use_mmap: if another process truncates the file while it is mapped, an access ends this process
  // (SIGBUS). Reads have no such hazard.
  static Result<WeightSource> open(const ModelFile& file, bool use_mmap);

  // tensor.bytes bytes, valid until the next call.
  Result<const std::byte*> read(const TensorInfo& tensor);
  // out.size() bytes of the tensor, from byte `first` on. Any number of threads at once.
  Status read(const TensorInfo& tensor, std::uint64_t first, std::span<std::byte> out) const;

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(std::byte* data) const;
  };
  class Descriptor {  // closes it
   public:
    explicit Descriptor(int value = -1) : value_(value) {}
    Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
      std::swap(value_, other.value_);
      return *this;
    }
    ~Descriptor();
    int get() const { return value_; }

   private:
    int value_;
  };
  WeightSource(const ModelFile& file, bool use_mmap) : file_(&file), use_mmap_(use_mmap) {}
  Status map();
  // Where the tensor is mapped.
  Result<const std::byte*> mapped(const TensorInfo& tensor) const;

  const ModelFile* file_;
  bool use_mmap_;
  Descriptor descriptor_;
  std::unique_ptr<std::byte, Unmap> mapping_{nullptr, Unmap{0}};
  Aligned<std::byte> buffer_;
};

// The blocks of a matrix, in memory or in a file. Refers to them.
class WeightBlocks {
 public:
  explicit WeightBlocks(const std::byte* data) : data_(data) {}
  WeightBlocks(WeightSource& source, const TensorInfo& tensor)
      : source_(&source), tensor_(&tensor) {}

  // Valid until the source reads another tensor.
  Result<const std::byte*> all() const;
  // The bytes from `first` on. Any number of threads at once.
  Status read(std::uint64_t first, std::span<std::byte> out) const;

 private:
  const std::byte* data_ = nullptr;
  WeightSource* source_ = nullptr;
  const TensorInfo* tensor_ = nullptr;
};

}  // namespace headrace
