// All environment variables that the library reads. They are for debugging and measuring; anything
// that results depend on is an argument. Read at each use, so that tests can set them.
#pragma once

#include <span>
#include <string_view>

namespace headrace::env {

enum class Variable { cpu_isa, cuda_sm, num_threads, kernel };

struct Description {
  Variable variable;
  const char* name;
  const char* text;  // one line for `headrace info`
};

std::span<const Description> variables();

// The value; empty if unset or empty.
std::string_view value_of(Variable variable);
const char* name_of(Variable variable);

}  // namespace headrace::env
