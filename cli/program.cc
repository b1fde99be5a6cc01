#include "program.h"

#include <iostream>

#include "headrace/headrace.hpp"
#include "suggest.h"

namespace headrace::cli {
namespace {

// The argument, quoted for a shell.
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

// The innermost subcommand that was chosen, or the program itself.
const CLI::App& chosen(const CLI::App& app) {
  const CLI::App* deepest = &app;
  while (!deepest->get_subcommands().empty()) deepest = deepest->get_subcommands().front();
  return *deepest;
}

std::string full_name(const CLI::App& app) {
  return app.get_parent() == nullptr ? app.get_name()
                                     : full_name(*app.get_parent()) + ' ' + app.get_name();
}

std::vector<std::string> subcommand_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(sub->get_name());
  return names;
}

std::string joined_names(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// Error text for the first argument that the parser did not take.
std::string unknown_argument(const CLI::App& command, const std::string& argument) {
  const bool is_option = argument.size() > 1 && argument.front() == '-';
  const std::vector<std::string> commands = subcommand_names(command);
  if (!is_option && commands.empty())
    return full_name(command) + ": unexpected argument \"" + argument +
           "\"; quote a text that contains spaces";
  // "--top-p=0.9": the name alone.
  const std::string name = is_option ? argument.substr(0, argument.find('=')) : argument;
  const std::string close = closest_name(name, is_option ? option_names(command) : commands);
  std::string text =
      full_name(command) + ": unknown " + (is_option ? "option" : "command") + " \"" + name + '"';
  if (!close.empty()) return text + "; did you mean " + close + '?';
  return is_option ? text : text + "; choose from " + joined_names(commands);
}

}  // namespace

void add_commands(CLI::App& app, Action& action, const std::string& command_line) {
  app.name("headrace");
  app.description("Headrace: exact, IO-aware attention, and language models that run on it");
  app.set_version_flag("--version", std::string("headrace ") + version());
  app.require_subcommand(1);
  app.footer(
      "Data goes to stdout, notes and progress to stderr. Exit codes: 0 ok, 1 failure, 2 usage.");
  add_generate(app, action);
  add_chat(app, action);
  add_batch(app, action);
  add_serve(app, action);
  add_bench(app, action, command_line);
  add_explain(app, action);
  add_roofline(app, action, command_line);
  add_tune(app, action, command_line);
  add_kernels(app, action);
  add_info(app, action);
  add_tokenize(app, action);
  add_perplexity(app, action);
  add_inspect(app, action);
  add_make_model(app, action);
  add_convert(app, action);
  add_completion(app, action);
  add_man(app, action);
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back('-' + name);
  }
  return names;
}

std::string usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = chosen(app);
  const std::vector<std::string> unknown = app.remaining(true);
  const bool is_about_a_value = dynamic_cast<const CLI::ValidationError*>(&error) != nullptr ||
                                dynamic_cast<const CLI::ConversionError*>(&error) != nullptr;
  if (!unknown.empty() && !is_about_a_value) return unknown_argument(command, unknown.front());
  const std::vector<std::string> commands = subcommand_names(command);
  if (!commands.empty() && dynamic_cast<const CLI::RequiredError*>(&error) != nullptr)
    return full_name(command) + ": a command is missing; choose from " + joined_names(commands);
  const std::string text = error.what();
  const bool has_no_value =
      dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr && text.ends_with(" missing");
  if (has_no_value)
    return full_name(command) + ": " + text.substr(0, text.find(':')) + ": the value is missing";
  return full_name(command) + ": " + text;
}

int run_program(int argc, char** argv) {
  CLI::App app;
  Action action;
  add_commands(app, action, command_line_of(argc, argv));
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    app.exit(asked);
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    std::cerr << usage_error(app, error) << '\n'
              << full_name(chosen(app)) << " --help lists the options\n";
    return kExitUsage;
  }
  return action();
}

}  // namespace headrace::cli
