#include "progress.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>

namespace headrace::cli {

void show_line(const std::string& text) {
  static const bool is_terminal = isatty(STDERR_FILENO) != 0;
  if (is_terminal) std::cerr << "\r\033[K" << text << std::flush;
}

void Progress::show(std::uint64_t done, std::uint64_t total, const std::string& amount) {
  constexpr std::uint64_t kWidth = 30;
  constexpr std::int64_t kPauseMs = 100;
  const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(
                       std::chrono::steady_clock::now().time_since_epoch())
                       .count();
  if (now - last_ms_ < kPauseMs) return;
  last_ms_ = now;
  is_shown_ = true;
  const auto filled = static_cast<std::size_t>(kWidth * done / std::max<std::uint64_t>(total, 1));
  show_line(what_ + " [" + std::string(filled, '=') + std::string(kWidth - filled, ' ') + "] " +
            amount);
}

void Progress::clear() {
  if (is_shown_) show_line("");
}

void show_mebibytes(Progress& progress, std::uint64_t done, std::uint64_t total) {
  progress.show(done, total,
                std::to_string(done >> 20) + '/' + std::to_string(total >> 20) + " MiB");
}

}  // namespace headrace::cli
