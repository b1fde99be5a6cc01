// headrace man: the man page, generated from the command tree.
#include "manual.h"

#include <iostream>

#include "command.h"
#include "headrace/headrace.hpp"

namespace headrace::cli {
namespace {

// Escapes text: copyable dashes, no escape sequences, no requests at the start of a line.
std::string roff(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '-')
      escaped += "\\-";
    else if (c == '\\')
      escaped += "\\e";
    else
      escaped += c;
  }
  if (!escaped.empty() && (escaped[0] == '.' || escaped[0] == '\'')) escaped.insert(0, "\\&");
  return escaped;
}

std::string option_entry(const OptionInfo& option) {
  std::string names;
  for (const std::string& name : option.names)
    names += (names.empty() ? "\\fB" : ", \\fB") + roff(name) + "\\fR";
  if (option.is_positional)
    return ".TP\n\\fI" + roff(option.names[0]) + "\\fR\n" + roff(option.text);
  const std::string form = option.form.empty() ? "" : " \\fI" + roff(option.form) + "\\fR";
  return ".TP\n" + names + form + '\n' + roff(option.text);
}

std::string command_section(const CommandInfo& command) {
  std::string synopsis = "\\fB" + roff(command.name) + "\\fR";
  if (!command.subcommands.empty()) synopsis += " \\fICOMMAND\\fR";
  synopsis += " [\\fIOPTIONS\\fR]";
  for (const OptionInfo& option : command.options)
    if (option.is_positional) synopsis += " \\fI" + roff(option.names[0]) + "\\fR";
  std::string text = ".SS " + synopsis + '\n' + roff(command.text) + ".\n";
  for (const OptionInfo& option : command.options) text += option_entry(option) + ".\n";
  return text;
}

std::string environment_section() {
  std::string text = ".SH ENVIRONMENT\n";
  for (int i = 0; const char* name = headrace_env_name(i); ++i)
    text += std::string(".TP\n\\fB") + name + "\\fR\n" + roff(headrace_env_text(i)) + ".\n";
  return text +
         ".TP\n\\fBNO_COLOR\\fR\nif set and not empty: no bold text on a terminal.\n"
         ".TP\n\\fBXDG_STATE_HOME\\fR\ndirectory of the chat history, by default "
         "~/.local/state.\n";
}

constexpr const char* kEnd =
    ".SH FILES\n.TP\n\\fI$XDG_STATE_HOME/headrace/chat_history\\fR\n"
    "the last 1000 lines typed in \\fBheadrace chat\\fR; \\-\\-no\\-history disables it.\n"
    ".TP\n\\fI~/.editrc\\fR\nkey bindings of the line editor; see \\fBeditrc\\fR(5).\n"
    ".SH EXIT STATUS\n.TP\n\\fB0\\fR\nsuccess.\n.TP\n\\fB1\\fR\nfailure: a file that cannot be "
    "read, "
    "damaged weights, no memory.\n.TP\n\\fB2\\fR\nwrong usage: an option, its value, or a prompt "
    "longer than the context.\n"
    ".SH EXAMPLES\n.EX\n"
    "headrace generate \\-m model.gguf \"Why is the sky blue?\" \\-n 200 \\-\\-temp 0.7 \\-\\-seed "
    "\\-1\n"
    "headrace chat \\-m model.gguf\n"
    "headrace bench model \\-m model.gguf \\-p 512 \\-n 128 \\-t 1,2 \\-\\-format md\n"
    "headrace explain attention \\-\\-seqlen 4096 \\-\\-head\\-dim 128 \\-\\-dtype bf16\n.EE\n";

}  // namespace

std::string man_page(const std::vector<CommandInfo>& commands) {
  const CommandInfo& program = commands.at(0);
  std::string text =
      ".TH HEADRACE 1 \"\" \"headrace " + std::string(version()) +
      "\" \"User Commands\"\n.SH NAME\nheadrace \\- attention and language models "
      "from the shell\n.SH SYNOPSIS\n\\fBheadrace\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n"
      ".SH DESCRIPTION\n" +
      roff(program.text) +
      ".\nData goes to stdout, notes and progress to stderr.\n"
      ".SH OPTIONS\n";
  for (const OptionInfo& option : program.options) text += option_entry(option) + ".\n";
  text += ".SH COMMANDS\n";
  for (std::size_t i = 1; i < commands.size(); ++i) text += command_section(commands[i]);
  return text + environment_section() + kEnd;
}

void add_man(CLI::App& app, Action& action) {
  CLI::App* man = app.add_subcommand("man", "Print the man page: headrace man | man -l -");
  man->callback([&app, &action] {
    action = [&app] {
      std::cout << man_page(commands_of(app));
      return kExitOk;
    };
  });
}

}  // namespace headrace::cli
