// headrace: the library from the shell.
#include <exception>
#include <iostream>
#include <string>

#include "command.h"
#include "headrace/headrace.hpp"

namespace {

using namespace headrace::cli;

// The command as it could be typed again.
std::string quoted(const std::string& argument) {
  constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%";
  if (!argument.empty() && argument.find_first_not_of(kPlain) == std::string::npos) return argument;
  std::string text = "'";
  for (const char c : argument) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string command_line_of(int argc, char** argv) {
  std::string text = "headrace";
  for (int i = 1; i < argc; ++i) text += ' ' + quoted(argv[i]);
  return text;
}

int run(int argc, char** argv) {
  CLI::App app("Headrace: exact, IO-aware attention, and language models that run on it",
               "headrace");
  app.set_version_flag("--version", std::string("headrace ") + headrace::version());
  app.require_subcommand(1);
  app.footer(
      "Data goes to stdout, notes and progress to stderr. Exit codes: 0 ok, 1 failure, 2 usage.");
  Action action;
  add_generate(app, action);
  add_chat(app, action);
  add_bench(app, action, command_line_of(argc, argv));
  add_explain(app, action);
  add_kernels(app, action);
  add_info(app, action);
  add_tokenize(app, action);
  add_perplexity(app, action);
  add_inspect(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  return action();
}

}  // namespace

int main(int argc, char** argv) {
  int exit_code = kExitFailure;
  try {
    exit_code = run(argc, argv);
  } catch (const headrace::Error& error) {
    print_note(error.what());
    // Every argument of the library came from the command line.
    exit_code = error.code() == HEADRACE_INVALID_ARGUMENT ? kExitUsage : kExitFailure;
  } catch (const std::bad_alloc&) {
    print_note("out of memory; ask for smaller shapes");
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
