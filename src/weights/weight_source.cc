#include "weights/weight_source.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace headrace {

void WeightSource::Unmap::operator()(std::byte* data) const { ::munmap(data, bytes); }

Result<WeightSource> WeightSource::open(const ModelFile& file, bool use_mmap) {
  WeightSource source(file, use_mmap);
  if (use_mmap) {
    if (auto bad = source.map()) return std::move(*bad);
  } else {
    source.stream_.open(file.path, std::ios::binary);
    if (!source.stream_)
      return file.failure(ErrorCode::io_error,
                          "cannot be opened for reading; check the path and its permissions");
  }
  return source;
}

Status WeightSource::map() {
  const int descriptor = ::open(file_->path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0)
    return file_->failure(ErrorCode::io_error,
                          "cannot be opened for reading; check the path and its permissions");
  struct stat info {};
  void* data = MAP_FAILED;
  if (::fstat(descriptor, &info) == 0 && info.st_size > 0)
    data = ::mmap(nullptr, static_cast<std::size_t>(info.st_size), PROT_READ, MAP_PRIVATE,
                  descriptor, 0);
  ::close(descriptor);
  if (data == MAP_FAILED)
    return file_->failure(ErrorCode::io_error,
                          "cannot be mapped into memory; load it without use_mmap");
  mapping_ = {static_cast<std::byte*>(data), Unmap{static_cast<std::size_t>(info.st_size)}};
  return std::nullopt;
}

Result<const std::byte*> WeightSource::read(const TensorInfo& tensor) {
  if (use_mmap_) {
    const std::uint64_t mapped = mapping_.get_deleter().bytes;  // the file may have shrunk
    if (tensor.offset > mapped || tensor.bytes > mapped - tensor.offset)
      return file_->wrong(format_text("'{}' extends past the end of the file", tensor.name));
    return static_cast<const std::byte*>(mapping_.get() + tensor.offset);
  }
  // A new buffer per tensor: a large one does not outlive its use.
  buffer_ = {};
  buffer_ = Aligned<std::byte>(tensor.bytes);
  if (buffer_.get() == nullptr)
    return Failure{ErrorCode::out_of_memory,
                   format_text("{}: no memory for the {} bytes of '{}'; close other programs or "
                               "use a smaller model",
                               file_->path, tensor.bytes, tensor.name)};
  stream_.seekg(static_cast<std::streamoff>(tensor.offset));
  if (!stream_.read(reinterpret_cast<char*>(buffer_.get()),
                    static_cast<std::streamsize>(tensor.bytes)))
    return file_->wrong(format_text("at byte {}: {} bytes of '{}' could not be read", tensor.offset,
                                    tensor.bytes, tensor.name));
  return static_cast<const std::byte*>(buffer_.get());
}

}  // namespace headrace
