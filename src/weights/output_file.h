// A file that appears under its name when it is complete: until then it has a temporary name in the
// same folder, and an error leaves nothing behind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/error.h"

namespace headrace {

class OutputFile {
 public:
  // io_error: the path is something else than a regular file, or cannot be created.
  static Result<OutputFile> create(const std::string& path);
  // A file in memory without a name; path() opens it while this object lives.
  static Result<OutputFile> create_in_memory();

  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();  // removes a file that was not committed

  // Writes at a position. Thread-safe. io_error: with the reason, such as a full disk.
  Status write(const void* data, std::size_t bytes, std::uint64_t offset) const;
  // Closes the file and gives it its name, replacing a file of that name.
  Status commit();
  const std::string& path() const { return path_; }

 private:
  OutputFile(std::string path, std::string temporary, int descriptor)
      : path_(std::move(path)), temporary_(std::move(temporary)), descriptor_(descriptor) {}
  Failure failure(const char* action) const;  // with the reason from errno

  std::string path_, temporary_;  // no temporary: in memory
  int descriptor_;                // -1: closed
};

}  // namespace headrace
