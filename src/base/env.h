// Every environment variable the library reads. They are for debugging and measuring: whatever a
// program needs for its results is an argument. Read at each use, so that a test may set them.
#pragma once

#include <span>
#include <string_view>

namespace headrace::env {

enum class Variable { cpu_isa, num_threads, kernel };

struct Description {
  Variable variable;
  const char* name;
  const char* text;  // one line for `headrace info`
};

std::span<const Description> variables();

// The value; empty when unset (or set to nothing).
std::string_view value_of(Variable variable);
const char* name_of(Variable variable);

}  // namespace headrace::env
