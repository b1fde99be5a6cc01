// A status line on stderr that overwrites itself; silent unless stderr is a terminal.
#pragma once

#include <cstdint>
#include <string>

namespace headrace::cli {

// Replaces the line; empty text clears it.
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

// "42/90 MiB".
void show_mebibytes(Progress& progress, std::uint64_t done, std::uint64_t total);

}  // namespace headrace::cli
