#include "files.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
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

void require_regular_file(const std::string& path) {
  if (const char* kind = other_kind(facts_of(path)))
    throw Error(HEADRACE_IO_ERROR, path + ": is " + kind + "; name a model file");
}

}  // namespace headrace::cli
