#include "line_reader.h"

namespace headrace::cli {

std::unique_ptr<LineReader> make_line_editor(const std::string&) { return nullptr; }
const char* line_editing_text() { return "none (built without libedit)"; }

}  // namespace headrace::cli
