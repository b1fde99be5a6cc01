// Reads input lines of a conversation from a terminal, file or pipe.
#pragma once

#include <memory>
#include <string>

namespace headrace::cli {

class LineReader {
 public:
  virtual ~LineReader() = default;
  // False: end of input, or an interrupt (interrupt.h).
  virtual bool read(std::string& line) = 0;
};

// At a terminal, in builds with libedit: line editing and history. Else plain lines, with a prompt
// on stderr if stdin is a terminal.
std::unique_ptr<LineReader> make_line_reader(const std::string& history_path);

// Null in a build without libedit.
std::unique_ptr<LineReader> make_line_editor(const std::string& history_path);
// "libedit", or why there is none.
const char* line_editing_text();

}  // namespace headrace::cli
