// Makes untrusted text safe for a terminal.
#pragma once

#include <string>
#include <string_view>

namespace headrace::cli {

// Keeps terminal control sequences of a file from reaching the terminal: a line end becomes \n;
// other control characters and invalid UTF-8 bytes become \xNN.
std::string printable(std::string_view bytes);

}  // namespace headrace::cli
