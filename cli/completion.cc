// headrace completion: scripts that complete commands, options and their values, made from the
// options.
#include "completion.h"

#include <iostream>
#include <memory>

#include "command.h"

namespace headrace::cli {
namespace {

constexpr const char* kHead = "completion of headrace, made by: headrace completion ";

std::string single_quoted(const std::string& text) {
  std::string all = "'";
  for (const char c : text) all += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return all + "'";
}

std::string joined_by(const char* separator, const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : separator) + word;
  return text;
}

// "    'headrace bench'|'headrace bench model') command+=" ...: follows the words of the line to
// the command that they name, in bash and in zsh.
std::string command_patterns(const std::vector<CommandInfo>& commands) {
  std::vector<std::string> patterns;
  for (const CommandInfo& command : commands)
    if (!command.parent().empty()) patterns.push_back(single_quoted(command.name));
  return joined_by("|", patterns);
}

// A case of bash: the values of one option.
std::string bash_value_case(const CommandInfo& command, const OptionInfo& option) {
  std::vector<std::string> patterns;
  for (const std::string& name : option.names)
    patterns.push_back(single_quoted(command.name + ' ' + name));
  std::string values;
  if (option.takes_file)
    values = "_headrace_files; ";
  else if (!option.choices.empty())
    values = "_headrace_words " + single_quoted(joined_by(" ", option.choices)) + "; ";
  return "    " + joined_by("|", patterns) + ") " + values + "return ;;\n";
}

// What zsh's _arguments takes as the action of a value.
std::string zsh_action(const OptionInfo& option) {
  if (option.takes_file) return "_files";
  return option.choices.empty() ? " " : '(' + joined_by(" ", option.choices) + ')';
}

// Inside the brackets and between the colons of _arguments.
std::string zsh_text(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string zsh_command(const CommandInfo& command) {
  std::string text = "    " + single_quoted(command.name) + ")\n      _arguments";
  for (const OptionInfo& option : command.options) {
    if (option.is_positional) {
      text += " \\\n        " + single_quoted(":" + option.names[0] + ':' + zsh_action(option));
      continue;
    }
    for (const std::string& name : option.names) {
      std::string spec = '*' + name + '[' + zsh_text(option.text) + ']';
      if (!option.form.empty()) spec += ":value:" + zsh_action(option);
      text += " \\\n        " + single_quoted(spec);
    }
  }
  if (!command.subcommands.empty())
    text +=
        " \\\n        " + single_quoted(":command:(" + joined_by(" ", command.subcommands) + ')');
  return text + " ;;\n";
}

// When fish offers what belongs to a command: its words are on the line, its subcommands' are not.
std::string fish_condition(const CommandInfo& command) {
  std::string condition;
  std::string rest = command.name;
  while (rest.find(' ') != std::string::npos) {
    rest.erase(0, rest.find(' ') + 1);
    condition += (condition.empty() ? "" : "; and ") +
                 ("__fish_seen_subcommand_from " + rest.substr(0, rest.find(' ')));
  }
  if (!command.subcommands.empty())
    condition += (condition.empty() ? "" : "; and ") +
                 ("not __fish_seen_subcommand_from " + joined_by(" ", command.subcommands));
  return condition;
}

std::string fish_option(const std::string& condition, const OptionInfo& option) {
  std::string line = "complete -c headrace -n " + single_quoted(condition);
  for (const std::string& name : option.names) {
    if (option.is_positional) break;
    line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  }
  if (!option.form.empty() && !option.is_positional) line += " -r";
  if (!option.form.empty()) line += option.takes_file ? " -F" : " -f";
  if (!option.choices.empty()) line += " -a " + single_quoted(joined_by(" ", option.choices));
  return line + " -d " + single_quoted(option.text) + '\n';
}

std::string script_of(const std::string& shell, const std::vector<CommandInfo>& commands) {
  if (shell == "bash") return bash_completion(commands);
  return shell == "zsh" ? zsh_completion(commands) : fish_completion(commands);
}

}  // namespace

std::string bash_completion(const std::vector<CommandInfo>& commands) {
  std::string text =
      std::string("# bash ") + kHead +
      "bash\n"
      "_headrace_words() { mapfile -t COMPREPLY < <(compgen -W \"$1\" -- \"$current\"); }\n"
      "_headrace_files() {\n"
      "  compopt -o filenames\n"
      "  mapfile -t COMPREPLY < <(compgen -f -- \"$current\")\n"
      "}\n"
      "_headrace() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}\n"
      "  local command=headrace word\n"
      "  COMPREPLY=()\n"
      "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
      "    case \"$command $word\" in\n      " +
      command_patterns(commands) +
      ") command+=\" $word\" ;;\n    esac\n  done\n"
      "  case \"$command $previous\" in\n";
  for (const CommandInfo& command : commands)
    for (const OptionInfo& option : command.options)
      if (!option.is_positional && !option.form.empty()) text += bash_value_case(command, option);
  text += "  esac\n  case \"$command\" in\n";
  for (const CommandInfo& command : commands) {
    std::vector<std::string> words = command.subcommands;
    std::string otherwise;
    for (const OptionInfo& option : command.options) {
      if (!option.is_positional)
        words.insert(words.end(), option.names.begin(), option.names.end());
      if (!option.is_positional) continue;
      words.insert(words.end(), option.choices.begin(), option.choices.end());
      if (option.takes_file) otherwise = "[[ $current == -* ]] || { _headrace_files; return; }; ";
    }
    text += "    " + single_quoted(command.name) + ") " + otherwise + "_headrace_words " +
            single_quoted(joined_by(" ", words)) + " ;;\n";
  }
  return text + "  esac\n}\ncomplete -F _headrace headrace\n";
}

std::string zsh_completion(const std::vector<CommandInfo>& commands) {
  std::string text = std::string("#compdef headrace\n# zsh ") + kHead +
                     "zsh\n"
                     "_headrace() {\n"
                     "  local command=headrace\n"
                     "  while (( CURRENT > 2 )); do\n"
                     "    case \"$command $words[2]\" in\n      " +
                     command_patterns(commands) +
                     ") command+=\" $words[2]\" ;;\n      *) break ;;\n    esac\n"
                     "    shift words\n    (( CURRENT-- ))\n  done\n"
                     "  case $command in\n";
  for (const CommandInfo& command : commands) text += zsh_command(command);
  return text + "  esac\n}\n_headrace \"$@\"\n";
}

std::string fish_completion(const std::vector<CommandInfo>& commands) {
  std::string text = std::string("# fish ") + kHead + "fish\ncomplete -c headrace -f\n";
  for (const CommandInfo& command : commands) {
    const std::string condition = fish_condition(command);
    for (const OptionInfo& option : command.options) text += fish_option(condition, option);
    for (const CommandInfo& sub : commands)
      if (sub.parent() == command.name)
        text += "complete -c headrace -n " + single_quoted(condition) + " -a " + sub.last_name() +
                " -d " + single_quoted(sub.text) + '\n';
  }
  return text;
}

void add_completion(CLI::App& app, Action& action) {
  CLI::App* completion = app.add_subcommand(
      "completion", "Print a script for a shell: source <(headrace completion bash)");
  auto shell = std::make_shared<std::string>();
  completion->add_option("shell", *shell, "the shell")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}))
      ->option_text("bash|zsh|fish REQUIRED");
  completion->callback([&app, &action, shell] {
    action = [&app, shell] {
      std::cout << script_of(*shell, commands_of(app));
      return kExitOk;
    };
  });
}

}  // namespace headrace::cli
