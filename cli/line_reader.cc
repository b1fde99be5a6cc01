#include "line_reader.h"

#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "interrupt.h"

namespace headrace::cli {
namespace {

class StreamReader : public LineReader {
 public:
  explicit StreamReader(bool is_terminal) : is_terminal_(is_terminal) {}

  bool read(std::string& line) override {
    if (is_terminal_) std::cerr << "> " << std::flush;
    line.clear();
    if (is_terminal_ && !wait_for_input()) return false;
    if (std::getline(std::cin, line)) return true;
    std::cin.clear();
    clearerr(stdin);
    return false;
  }

 private:
  bool is_terminal_;
};

}  // namespace

std::unique_ptr<LineReader> make_line_reader(const std::string& history_path) {
  const bool is_terminal = isatty(STDIN_FILENO) != 0;
  std::unique_ptr<LineReader> reader;
  if (is_terminal && isatty(STDERR_FILENO) != 0) reader = make_line_editor(history_path);
  return reader ? std::move(reader) : std::make_unique<StreamReader>(is_terminal);
}

}  // namespace headrace::cli
