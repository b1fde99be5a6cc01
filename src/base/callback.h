// Calls of functions that belong to the host program.
#pragma once

#include <exception>

#include "base/error.h"

namespace headrace {

// Runs `call`, which calls the callback `name`. An exception becomes a failure that names the
// callback.
template <class Call>
[[nodiscard]] Status call_back(const char* name, Call call) {
  constexpr const char* kText =
      "{}: threw {}: a callback must not throw; catch it inside of the callback and keep it for "
      "your own code";
  try {
    call();
    return std::nullopt;
  } catch (const std::exception& error) {
    return invalid_argument(kText, name, format_text("\"{}\"", error.what()));
  } catch (...) {
    return invalid_argument(kText, name, "something that is no std::exception");
  }
}

}  // namespace headrace
