#include "command_tree.h"

#include <sstream>

namespace headrace::cli {
namespace {

// From the parser's "TEXT:{f16,bf16,f32}".
std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t begin = type.find('{'), end = type.find('}');
  std::vector<std::string> choices;
  if (begin == std::string::npos || end == std::string::npos) return choices;
  std::istringstream list(type.substr(begin + 1, end - begin - 1));
  for (std::string choice; std::getline(list, choice, ',');) choices.push_back(choice);
  return choices;
}

// The value's placeholder and default, without the parser's annotations.
std::string form_of(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return {};
  std::string form = option.get_option_text();
  if (form.empty()) form = "TEXT";
  constexpr std::string_view kRequired = " REQUIRED";
  if (form.ends_with(kRequired)) form.resize(form.size() - kRequired.size());
  return form;
}

OptionInfo option_info(const CLI::Option& option) {
  OptionInfo info{.names = {},
                  .form = form_of(option),
                  .text = option.get_description(),
                  .group = option.get_group(),
                  .choices = choices_of(option)};
  for (const std::string& name : option.get_snames()) info.names.push_back('-' + name);
  for (const std::string& name : option.get_lnames()) info.names.push_back("--" + name);
  info.takes_file = info.form.starts_with("FILE");
  return info;
}

void add_command(const CLI::App& app, const std::string& parent, std::vector<CommandInfo>& all) {
  CommandInfo command{.name = parent.empty() ? app.get_name() : parent + ' ' + app.get_name(),
                      .text = app.get_description(),
                      .subcommands = {},
                      .options = {}};
  const auto any = [](const CLI::App*) { return true; };
  for (const CLI::App* sub : app.get_subcommands(any))
    command.subcommands.push_back(sub->get_name());
  for (const CLI::Option* option : app.get_options()) {
    OptionInfo info = option_info(*option);
    if (option->get_positional()) {
      OptionInfo positional = info;
      positional.names = {option->get_name(true)};
      positional.is_positional = true;
      command.options.push_back(std::move(positional));
    }
    if (!info.names.empty()) command.options.push_back(std::move(info));
  }
  const std::string name = command.name;
  all.push_back(std::move(command));
  for (const CLI::App* sub : app.get_subcommands(any)) add_command(*sub, name, all);
}

}  // namespace

std::string CommandInfo::parent() const {
  const std::size_t space = name.rfind(' ');
  return space == std::string::npos ? "" : name.substr(0, space);
}

std::string CommandInfo::last_name() const { return name.substr(name.rfind(' ') + 1); }

std::vector<CommandInfo> commands_of(const CLI::App& app) {
  std::vector<CommandInfo> all;
  add_command(app, "", all);
  return all;
}

}  // namespace headrace::cli
