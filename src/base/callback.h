// Calls user callbacks.
#pragma once

#include <exception>

#include "base/error.h"

namespace headrace {

// Runs `call`, which invokes the callback `name`. An exception becomes a failure that names it.
template <class Call>
[[nodiscard]] Status call_back(const char* name, Call call) {
  constexpr const char* kText =
      "{}: threw {}: a callback must not throw; catch the exception inside the callback and handle "
      "it in your own code";
  try {
    call();
    return std::nullopt;
  } catch (const std::exception& error) {
    return invalid_argument(kText, name, format_text("\"{}\"", error.what()));
  } catch (...) {
    return invalid_argument(kText, name, "an exception not derived from std::exception");
  }
}

}  // namespace headrace
