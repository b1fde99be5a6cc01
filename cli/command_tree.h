// The program's commands and options as data. The man page and the shell completions are generated
// from it, so neither can miss an option.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace headrace::cli {

struct OptionInfo {
  std::vector<std::string> names;    // "-m", "--model"; for a positional argument "prompt"
  std::string form;                  // value placeholder and default, "N [512]"; empty: a flag
  std::string text;                  // text in --help
  std::string group;                 // heading in --help, "Sampling"
  std::vector<std::string> choices;  // allowed values, if enumerated
  bool is_positional = false;
  bool takes_file = false;
};

struct CommandInfo {
  std::string name;  // "headrace bench model"
  std::string text;
  std::vector<std::string> subcommands;  // "model"
  std::vector<OptionInfo> options;

  std::string parent() const;     // "headrace bench"; "" for the program itself
  std::string last_name() const;  // "model"
};

// Pre-order: the program first, each command before its subcommands.
std::vector<CommandInfo> commands_of(const CLI::App& app);

}  // namespace headrace::cli
