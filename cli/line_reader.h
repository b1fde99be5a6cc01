// Lines of input for a conversation: a person at a terminal, or a file or pipe.
#pragma once

#include <memory>
#include <string>

namespace headrace::cli {

class LineReader {
 public:
  virtual ~LineReader() = default;
  // False: the end of the input, or an interrupt (interrupt.h).
  virtual bool read(std::string& line) = 0;
};

// At a terminal: editing keys and the history by the arrow keys where the build has libedit. Else
// lines as they come, with a prompt on stderr where stdin is a terminal.
std::unique_ptr<LineReader> make_line_reader(const std::string& history_path);

// Null in a build without libedit.
std::unique_ptr<LineReader> make_line_editor(const std::string& history_path);
// "libedit", or why there is none.
const char* line_editing_text();

}  // namespace headrace::cli
