// The command line as a whole: every subcommand, and what happens with a wrong one.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "command.h"

namespace headrace::cli {

// `action` and `app` must outlive what the parser calls; `command_line` is for reports.
void add_commands(CLI::App& app, Action& action, const std::string& command_line);

// Names, with their dashes, that `app` takes: "-m", "--model".
std::vector<std::string> option_names(const CLI::App& app);

// What is wrong with the command line that `app` refused with `error`, and the remedy.
std::string usage_error(const CLI::App& app, const CLI::ParseError& error);

// Parses and runs; the exit code.
int run_program(int argc, char** argv);

}  // namespace headrace::cli
