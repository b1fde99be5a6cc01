#include "weights/output_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace headrace {
namespace {

Failure io_error(const std::string& path, const char* action) {
  const int error = errno;
  return {ErrorCode::io_error,
          format_text("{}: cannot be {}: {}", path, action, std::strerror(error))};
}

}  // namespace

Result<OutputFile> OutputFile::create(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode))
    return Failure{ErrorCode::io_error,
                   format_text("{}: is {}, expected the name of a file; pass another name", path,
                               S_ISDIR(info.st_mode) ? "a directory" : "not a regular file")};
  std::string temporary = format_text("{}.{}.part", path, ::getpid());
  const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) return io_error(temporary, "created");
  return OutputFile(path, std::move(temporary), descriptor);
}

Result<OutputFile> OutputFile::create_in_memory() {
  const int descriptor = ::memfd_create("headrace", MFD_CLOEXEC);
  if (descriptor < 0) return io_error("a file in memory", "created");
  return OutputFile(format_text("/proc/self/fd/{}", descriptor), "", descriptor);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

OutputFile::~OutputFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Failure OutputFile::failure(const char* action) const {
  return io_error(temporary_.empty() ? "a file in memory" : path_, action);
}

Status OutputFile::write(const void* data, std::size_t bytes, std::uint64_t offset) const {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t count = ::pwrite(descriptor_, at, bytes, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return failure("written");
    at += count;
    offset += static_cast<std::uint64_t>(count);
    bytes -= static_cast<std::size_t>(count);
  }
  return std::nullopt;
}

Status OutputFile::commit() {
  if (::close(std::exchange(descriptor_, -1)) != 0 ||
      std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    Failure failed = failure("written");
    ::unlink(temporary_.c_str());
    return failed;
  }
  return std::nullopt;
}

}  // namespace headrace
