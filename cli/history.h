// Lines that were typed, kept from one conversation to the next.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace headrace::cli {

class History {
 public:
  static constexpr std::size_t kMaxLines = 1000;

  // Reads the file and, where it has more than max_lines, shortens it to the newest. Empty path:
  // nothing is read or kept. Throws Error(HEADRACE_IO_ERROR) where the file cannot be used.
  explicit History(std::string path, std::size_t max_lines = kMaxLines);

  // Oldest first, at most max_lines.
  const std::vector<std::string>& lines() const { return lines_; }
  // To the list and the file. Empty lines and repetitions of the newest line are left out.
  void add(const std::string& line);

 private:
  void shorten();
  void rewrite() const;

  std::string path_;
  std::size_t max_lines_;
  std::vector<std::string> lines_;
};

// $XDG_STATE_HOME/headrace/chat_history, by default under ~/.local/state; empty without a home.
std::string history_path();

}  // namespace headrace::cli
