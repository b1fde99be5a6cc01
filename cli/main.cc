// headrace: the library from the shell.
#include <exception>
#include <iostream>

#include "command.h"
#include "headrace/headrace.hpp"
#include "program.h"

int main(int argc, char** argv) {
  using namespace headrace::cli;
  int exit_code = kExitFailure;
  try {
    exit_code = run_program(argc, argv);
  } catch (const headrace::Error& error) {
    print_note(error.what());
    // Invalid arguments come from the command line.
    exit_code = error.code() == HEADRACE_INVALID_ARGUMENT ? kExitUsage : kExitFailure;
  } catch (const std::bad_alloc&) {
    print_note("out of memory; pass smaller shapes");
  } catch (const std::exception& error) {
    print_note(error.what());
  }
  std::cout.flush();
  if (!std::cout && exit_code == kExitOk) {
    print_note("cannot write to stdout");
    exit_code = kExitFailure;
  }
  return exit_code;
}
