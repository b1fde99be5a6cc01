#include "weights/weight_source.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace headrace {

void WeightSource::Unmap::operator()(std::byte* data) const { ::munmap(data, bytes); }

WeightSource::Descriptor::~Descriptor() {
  if (value_ >= 0) ::close(value_);
}

Result<WeightSource> WeightSource::open(const ModelFile& file, bool use_mmap) {
  WeightSource source(file, use_mmap);
  source.descriptor_ = Descriptor(::open(file.path.c_str(), O_RDONLY | O_CLOEXEC));
  if (source.descriptor_.get() < 0)
    return file.failure(ErrorCode::io_error,
                        "cannot be opened for reading; check the path and its permissions");
  if (!use_mmap) return source;
  if (auto bad = source.map()) return std::move(*bad);
  source.descriptor_ = Descriptor();
  return source;
}

Status WeightSource::map() {
  struct stat info {};
  void* data = MAP_FAILED;
  if (::fstat(descriptor_.get(), &info) == 0 && info.st_size > 0)
    data = ::mmap(nullptr, static_cast<std::size_t>(info.st_size), PROT_READ, MAP_PRIVATE,
                  descriptor_.get(), 0);
  if (data == MAP_FAILED)
    return file_->failure(ErrorCode::io_error,
                          "cannot be mapped into memory; load it without use_mmap");
  mapping_ = {static_cast<std::byte*>(data), Unmap{static_cast<std::size_t>(info.st_size)}};
  return std::nullopt;
}

Result<const std::byte*> WeightSource::mapped(const TensorInfo& tensor) const {
  const std::uint64_t bytes = mapping_.get_deleter().bytes;  // the file may have shrunk
  if (tensor.offset > bytes || tensor.bytes > bytes - tensor.offset)
    return file_->wrong(format_text("'{}' extends past the end of the file", tensor.name));
  return static_cast<const std::byte*>(mapping_.get() + tensor.offset);
}

Result<const std::byte*> WeightSource::read(const TensorInfo& tensor) {
  if (use_mmap_) return mapped(tensor);
  // A new buffer per tensor: a large one does not outlive its use.
  buffer_ = {};
  buffer_ = Aligned<std::byte>(tensor.bytes);
  if (buffer_.get() == nullptr)
    return Failure{ErrorCode::out_of_memory,
                   format_text("{}: no memory for the {} bytes of '{}'; close other programs or "
                               "use a smaller model",
                               file_->path, tensor.bytes, tensor.name)};
  if (Status bad = read(tensor, 0, {buffer_.get(), tensor.bytes})) return std::move(*bad);
  return static_cast<const std::byte*>(buffer_.get());
}

Status WeightSource::read(const TensorInfo& tensor, std::uint64_t first,
                          std::span<std::byte> out) const {
  if (use_mmap_) {
    Result<const std::byte*> data = mapped(tensor);
    if (!data.ok()) return std::move(data.failure());
    std::memcpy(out.data(), data.value() + first, out.size());
    return std::nullopt;
  }
  while (!out.empty()) {
    const ssize_t count = ::pread(descriptor_.get(), out.data(), out.size(),
                                  static_cast<off_t>(tensor.offset + first));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0)
      return file_->wrong(format_text("at byte {}: {} bytes of '{}' could not be read",
                                      tensor.offset, tensor.bytes, tensor.name));
    out = out.subspan(static_cast<std::size_t>(count));
    first += static_cast<std::uint64_t>(count);
  }
  return std::nullopt;
}

Result<const std::byte*> WeightBlocks::all() const {
  if (source_ == nullptr) return data_;
  return source_->read(*tensor_);
}

Status WeightBlocks::read(std::uint64_t first, std::span<std::byte> out) const {
  if (source_ != nullptr) return source_->read(*tensor_, first, out);
  std::memcpy(out.data(), data_ + first, out.size());
  return std::nullopt;
}

}  // namespace headrace
