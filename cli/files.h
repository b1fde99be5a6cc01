// Files named on the command line. All functions throw Error(HEADRACE_IO_ERROR): path and reason.
#pragma once

#include <string>

namespace headrace::cli {

// The whole content of a file, pipe or device; "-" is standard input.
std::string read_text(const std::string& path);

// Model files need random access, which directories, FIFOs and devices do not offer.
void require_regular_file(const std::string& path);

// "PATH: cannot be opened for writing: REASON", the reason from errno.
[[noreturn]] void fail_to_open(const std::string& path, const char* purpose);

}  // namespace headrace::cli
