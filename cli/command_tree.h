// The commands and options of the program as data: what the man page and the completions of the
// shells are made from, so that neither can miss an option.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace headrace::cli {

struct OptionInfo {
  std::vector<std::string> names;    // "-m", "--model"; of a positional argument "prompt"
  std::string form;                  // of its value, "N [512]"; empty: a flag
  std::string text;                  // what --help says
  std::string group;                 // heading in --help, "Sampling"
  std::vector<std::string> choices;  // all values, where there are few
  bool is_positional = false;
  bool takes_file = false;
};

struct CommandInfo {
  std::string name;  // "headrace bench model"
  std::string text;
  std::vector<std::string> subcommands;  // "model"
  std::vector<OptionInfo> options;

  std::string parent() const;     // "headrace bench"; of the program itself ""
  std::string last_name() const;  // "model"
};

// The program first, each command before its subcommands.
std::vector<CommandInfo> commands_of(const CLI::App& app);

}  // namespace headrace::cli
