// Files named on the command line. Unless it is said, functions throw Error(HEADRACE_IO_ERROR):
// path and reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace headrace::cli {

// The whole content of a file, pipe or device; "-" is standard input.
std::string read_text(const std::string& path);

// Writes `text` to a file opened with open()'s `flags`, such as O_APPEND; created with mode 0600.
void write_text(const std::string& path, int flags, const std::string& text);
// Atomic replacement: a crash or a concurrent reader finds a complete file. Makes the folder.
void replace_file(const std::string& path, const std::string& text);

// The folder that the variable names, or HOME + `in_home`; variables whose value is no absolute
// path are ignored. "": neither.
std::string xdg_folder(const char* variable, const char* in_home);

// $XDG_CACHE_HOME/headrace/KIND-DEVICE-UNITS-SOFTWARE and an ending, by default under ~/.cache; ""
// if HOME is unset.
std::string cache_path(const std::string& kind, const std::string& device, std::int64_t num_units,
                       const std::string& software, const std::string& ending);
// The start of a regular file, up to so many bytes; no value: there is none, and `reason` is set if
// it cannot be read. Does not throw.
std::optional<std::string> read_start(const std::string& path, std::size_t most_bytes,
                                      std::string& reason);

// Model files need random access, which directories, FIFOs and devices do not offer.
void require_regular_file(const std::string& path);

// "PATH: cannot be opened for writing: REASON", the reason from errno.
[[noreturn]] void fail_to_open(const std::string& path, const char* purpose);

}  // namespace headrace::cli
