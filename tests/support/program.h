// Runs the headrace program through a shell.
#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

#include "tests/support/temporary_folder.h"

namespace headrace::testing {

struct ProgramResult {
  int exit_code;
  std::string out;
};

// Runs `headrace <arguments>`; stderr is dropped unless the arguments redirect it.
inline ProgramResult run_program(const std::string& arguments) {
  const std::string command = "exec 2>/dev/null; '" HEADRACE_PROGRAM "' " + arguments;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {-1, {}};
  ProgramResult result{};
  std::array<char, 4096> buffer;
  for (std::size_t count; (count = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    result.out.append(buffer.data(), count);
  const int status = pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

}  // namespace headrace::testing
