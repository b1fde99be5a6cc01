#include "history.h"

#include <fcntl.h>

#include <filesystem>
#include <fstream>

#include "files.h"

namespace headrace::cli {

History::History(std::string path, std::size_t max_lines)
    : path_(std::move(path)), max_lines_(max_lines) {
  if (path_.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), error);
  write_text(path_, O_APPEND, "");  // fails now if the file cannot be written
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
  if (!path_.empty()) write_text(path_, O_APPEND, line + '\n');
}

void History::shorten() {
  if (lines_.size() > max_lines_)
    lines_.erase(lines_.begin(), lines_.end() - static_cast<std::ptrdiff_t>(max_lines_));
}

void History::rewrite() const {
  std::string text;
  for (const std::string& line : lines_) text += line + '\n';
  replace_file(path_, text);
}

std::string history_path() {
  const std::string folder = xdg_folder("XDG_STATE_HOME", "/.local/state");
  return folder.empty() ? folder : folder + "/headrace/chat_history";
}

}  // namespace headrace::cli
