// The whole command line: all subcommands, and usage errors.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "command.h"

namespace headrace::cli {

// `action` and `app` must outlive parsing and the action; `command_line` is for reports.
void add_commands(CLI::App& app, Action& action, const std::string& command_line);

// The option names of `app`, with dashes: "-m", "--model".
std::vector<std::string> option_names(const CLI::App& app);

// Message and remedy for the command line that `app` refused with `error`.
std::string usage_error(const CLI::App& app, const CLI::ParseError& error);

// Parses and runs; returns the exit code.
int run_program(int argc, char** argv);

}  // namespace headrace::cli
