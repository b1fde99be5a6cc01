// The bytes of a model file's tensors, one tensor at a time.
#pragma once

#include <cstddef>
#include <fstream>
#include <memory>

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

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(std::byte* data) const;
  };
  WeightSource(const ModelFile& file, bool use_mmap) : file_(&file), use_mmap_(use_mmap) {}
  Status map();

  const ModelFile* file_;
  bool use_mmap_;
  std::ifstream stream_;
  std::unique_ptr<std::byte, Unmap> mapping_{nullptr, Unmap{0}};
  Aligned<std::byte> buffer_;
};

}  // namespace headrace
