// Files that the command line names. Everything throws Error(HEADRACE_IO_ERROR): path and reason.
#pragma once

#include <string>

namespace headrace::cli {

// All of a file, pipe or device; "-" is standard input.
std::string read_text(const std::string& path);

// A model is read from any place of its file, which a directory, a FIFO or a device does not allow.
void require_regular_file(const std::string& path);

// "PATH: cannot be opened for writing: REASON", the reason from errno.
[[noreturn]] void fail_to_open(const std::string& path, const char* purpose);

}  // namespace headrace::cli
