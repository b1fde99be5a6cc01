// History of typed lines, kept across conversations.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace headrace::cli {

class History {
 public:
  static constexpr std::size_t kMaxLines = 1000;

  // Reads the file and truncates it to the newest max_lines. Empty path: no file is read or
  // written. Throws Error(HEADRACE_IO_ERROR) if the file cannot be used.
  explicit History(std::string path, std::size_t max_lines = kMaxLines);

  // Oldest first, at most max_lines.
  const std::vector<std::string>& lines() const { return lines_; }
  // Appends to the list and the file. Skips empty lines and repetitions of the newest line.
  void add(const std::string& line);

 private:
  void shorten();
  void rewrite() const;

  std::string path_;
  std::size_t max_lines_;
  std::vector<std::string> lines_;
};

// $XDG_STATE_HOME/headrace/chat_history, by default under ~/.local/state; empty if HOME is unset.
std::string history_path();

}  // namespace headrace::cli
