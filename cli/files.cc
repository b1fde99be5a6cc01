#include "files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "headrace/headrace.hpp"

namespace headrace::cli {
namespace {

// The kind of a path that is not a regular file; null for a regular file.
const char* other_kind(const struct stat& facts) {
  switch (facts.st_mode & S_IFMT) {
    case S_IFDIR:
      return "a directory";
    case S_IFIFO:
      return "a FIFO (named pipe)";
    case S_IFSOCK:
      return "a socket";
    case S_IFCHR:
      return "a character device";
    case S_IFBLK:
      return "a block device";
    default:
      return nullptr;
  }
}

// "AMD EPYC 7B13" as a part of a file's name.
std::string file_part(const std::string& text) {
  std::string part;
  for (const char c : text) {
    const bool is_plain =
        (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.';
    if (is_plain || (!part.empty() && part.back() != '-')) part += is_plain ? c : '-';
  }
  while (part.ends_with('-')) part.pop_back();
  return part;
}

struct stat facts_of(const std::string& path) {
  struct stat facts {};
  if (stat(path.c_str(), &facts) != 0) fail_to_open(path, "reading");
  return facts;
}

std::string read_all(std::istream& in, const std::string& path) {
  std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (in.bad()) throw Error(HEADRACE_IO_ERROR, path + ": read error before the end of the file");
  return text;
}

}  // namespace

void fail_to_open(const std::string& path, const char* purpose) {
  const std::string reason = std::strerror(errno);
  throw Error(HEADRACE_IO_ERROR, path + ": cannot be opened for " + purpose + ": " + reason);
}

std::string read_text(const std::string& path) {
  if (path == "-") return read_all(std::cin, "standard input");
  if (S_ISDIR(facts_of(path).st_mode))
    throw Error(HEADRACE_IO_ERROR, path + ": is a directory; name a text file");
  std::ifstream file(path, std::ios::binary);
  if (!file) fail_to_open(path, "reading");
  return read_all(file, path);
}

void write_text(const std::string& path, int flags, const std::string& text) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0600);
  if (file < 0) fail_to_open(path, "writing");
  const ssize_t written = write(file, text.data(), text.size());
  if (close(file) != 0 || written != static_cast<ssize_t>(text.size()))
    throw Error(HEADRACE_IO_ERROR, path + ": cannot be written: " + std::strerror(errno));
}

void replace_file(const std::string& path, const std::string& text) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  const std::string draft = path + '.' + std::to_string(getpid());
  write_text(draft, O_TRUNC, text);
  if (std::rename(draft.c_str(), path.c_str()) != 0) fail_to_open(path, "writing");
}

std::string cache_path(const std::string& kind, const std::string& device, std::int64_t num_units,
                       const std::string& software, const std::string& ending) {
  const std::string folder = xdg_folder("XDG_CACHE_HOME", "/.cache");
  if (folder.empty()) return folder;
  return folder + "/headrace/" + kind + '-' + file_part(device) + '-' + std::to_string(num_units) +
         '-' + file_part(software) + ending;
}

std::optional<std::string> read_start(const std::string& path, std::size_t most_bytes,
                                      std::string& reason) {
  reason.clear();
  struct stat facts {};
  if (stat(path.c_str(), &facts) != 0) return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  if (!S_ISREG(facts.st_mode) || !file) {
    reason = "it cannot be read";
    return std::nullopt;
  }
  std::string text(most_bytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

std::string xdg_folder(const char* variable, const char* in_home) {
  const auto absolute = [](const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && *value == '/' ? std::string(value) : std::string();
  };
  const std::string folder = absolute(variable);
  if (!folder.empty()) return folder;
  const std::string home = absolute("HOME");
  return home.empty() ? home : home + in_home;
}

void require_regular_file(const std::string& path) {
  if (const char* kind = other_kind(facts_of(path)))
    throw Error(HEADRACE_IO_ERROR, path + ": is " + kind + "; name a model file");
}

}  // namespace headrace::cli
