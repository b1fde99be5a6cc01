// Where the library says what a program may want to know. Default: nowhere; it never prints.
#pragma once

#include <string>

#include "base/error.h"

namespace headrace {

void set_log(headrace_log_fn fn, void* user);
// Calls the program's function on this thread, outside of any lock: it may call the library again.
// Fails where it throws.
[[nodiscard]] Status log_text(headrace_log_level level, const std::string& text);
// False when nobody listens: then the text need not be made.
bool is_log_set();

}  // namespace headrace
