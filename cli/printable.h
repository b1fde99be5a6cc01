// Text from outside, for a terminal.
#pragma once

#include <string>
#include <string_view>

namespace headrace::cli {

// What a terminal would take for commands must not come from a file: a line end becomes \n, other
// control characters and bytes that are no part of a whole UTF-8 character become \xNN.
std::string printable(std::string_view bytes);

}  // namespace headrace::cli
