// Where a suite is, on stderr: a line that overwrites itself on a terminal, elsewhere one each half
// a minute.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>

namespace headrace::testing {

class StatusLine {
 public:
  StatusLine() = default;
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;
  ~StatusLine() {
    if (is_terminal_) std::fputs("\r\033[K", stderr);
  }

  void show(const std::string& text) {
    const auto now = Clock::now();
    if (!is_terminal_ && now - last_ < std::chrono::seconds(30)) return;
    last_ = now;
    std::fprintf(stderr, is_terminal_ ? "\r\033[K%s" : "%s\n", text.c_str());
  }

 private:
  using Clock = std::chrono::steady_clock;
  const bool is_terminal_ = isatty(STDERR_FILENO) != 0;
  Clock::time_point last_ = Clock::now();
};

}  // namespace headrace::testing
