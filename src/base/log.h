// The log callback. Unset by default: the library never prints.
#pragma once

#include <string>

#include "base/error.h"

namespace headrace {

void set_log(headrace_log_fn fn, void* user);
// Invokes the log callback on the calling thread, without holding a lock: it may call the library.
// Fails if the callback throws.
[[nodiscard]] Status log_text(headrace_log_level level, const std::string& text);
// False: no callback is set, so the text need not be built.
bool is_log_set();

}  // namespace headrace
