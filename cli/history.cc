#include "history.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "files.h"
#include "headrace/headrace.hpp"

namespace headrace::cli {
namespace {

// Mode 0600: conversations are private.
void write_lines(const std::string& path, int flags, const std::string& text) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0600);
  if (file < 0) fail_to_open(path, "writing");
  const ssize_t written = write(file, text.data(), text.size());
  if (close(file) != 0 || written != static_cast<ssize_t>(text.size()))
    throw Error(HEADRACE_IO_ERROR, path + ": cannot be written: " + std::strerror(errno));
}

}  // namespace

History::History(std::string path, std::size_t max_lines)
    : path_(std::move(path)), max_lines_(max_lines) {
  if (path_.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), error);
  write_lines(path_, O_APPEND, "");  // fails now if the file cannot be written
  std::ifstream file(path_);
  if (!file) fail_to_open(path_, "reading");
  for (std::string line; std::getline(file, line);) lines_.push_back(line);
  if (lines_.size() <= max_lines_) return;
  shorten();
  rewrite();
}

void History::add(const std::string& line) {
  if (line.empty() || (!lines_.empty() && lines_.back() == line)) return;
  lines_.push_back(line);
  shorten();
  if (!path_.empty()) write_lines(path_, O_APPEND, line + '\n');
}

void History::shorten() {
  if (lines_.size() > max_lines_)
    lines_.erase(lines_.begin(), lines_.end() - static_cast<std::ptrdiff_t>(max_lines_));
}

// Atomic replacement: a crash or a concurrent conversation finds a complete file.
void History::rewrite() const {
  std::string text;
  for (const std::string& line : lines_) text += line + '\n';
  const std::string draft = path_ + '.' + std::to_string(getpid());
  write_lines(draft, O_TRUNC, text);
  if (std::rename(draft.c_str(), path_.c_str()) != 0) fail_to_open(path_, "writing");
}

std::string history_path() {
  const auto absolute = [](const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && *value == '/' ? std::string(value) : std::string();
  };
  std::string folder = absolute("XDG_STATE_HOME");
  if (folder.empty() && !absolute("HOME").empty()) folder = absolute("HOME") + "/.local/state";
  return folder.empty() ? folder : folder + "/headrace/chat_history";
}

}  // namespace headrace::cli
