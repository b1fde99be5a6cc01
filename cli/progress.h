// A line on stderr that is written over itself; nothing where stderr is no terminal.
#pragma once

#include <cstdint>
#include <string>

namespace headrace::cli {

// Writes the text over the line; empty: clears it.
void show_line(const std::string& text);

// "loading [=====     ] 42/90 MiB", at most a few times a second.
class Progress {
 public:
  explicit Progress(std::string what) : what_(std::move(what)) {}
  void show(std::uint64_t done, std::uint64_t total, const std::string& amount);
  void clear();

 private:
  std::string what_;
  std::int64_t last_ms_ = 0;
  bool is_shown_ = false;
};

}  // namespace headrace::cli
