// Man page and completions match the parser: no option, command or value is missing.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <sstream>

#include "command_tree.h"
#include "completion.h"
#include "headrace/headrace.hpp"
#include "manual.h"
#include "program.h"
#include "tests/support/program.h"

namespace headrace::cli {
namespace {

struct Program {
  CLI::App app;
  Action action;
  Program() { add_commands(app, action, "headrace"); }
};

using OnCommand = std::function<void(const std::string& path, const CLI::App& command)>;

void for_each_command(const CLI::App& app, const std::string& path, const OnCommand& body) {
  body(path, app);
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    for_each_command(*sub, path + ' ' + sub->get_name(), body);
}

std::vector<std::string> subcommands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(sub->get_name());
  return names;
}

std::string output_of(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  std::string out;
  for (int c; (c = std::fgetc(pipe)) != EOF;) out += static_cast<char>(c);
  pclose(pipe);
  return out;
}

bool has_tool(const std::string& name) {
  return !output_of("command -v " + name + " 2>/dev/null").empty();
}

// Bash's completions of the last word.
std::set<std::string> bash_offers(const std::string& script, const std::string& words) {
  const std::string out = output_of(
      "bash -c 'compopt() { :; }; source \"" + script + "\"; COMP_WORDS=(" + words +
      "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _headrace; printf \"%s\\n\" \"${COMPREPLY[@]}\"'");
  std::istringstream lines(out);
  std::set<std::string> offers;
  for (std::string line; std::getline(lines, line);) offers.insert(line);
  return offers;
}

std::string roff_name(const std::string& name) {
  std::string text;
  for (const char c : name) text += c == '-' ? std::string("\\-") : std::string(1, c);
  return "\\fB" + text + "\\fR";
}

// From a command's heading to the next one.
std::string man_section(const std::string& page, const std::string& command) {
  const std::string heading =
      command == "headrace" ? ".SH OPTIONS\n" : ".SS " + roff_name(command) + ' ';
  const std::size_t begin = page.find(heading);
  if (begin == std::string::npos) return {};
  return page.substr(begin, page.find("\n.S", begin + 1) - begin);
}

TEST(ShellFiles, TheManPageHasEveryCommandOptionAndDescription) {
  Program program;
  const std::string page = man_page(commands_of(program.app));
  for_each_command(program.app, "headrace", [&](const std::string& path, const CLI::App& command) {
    const std::string section = man_section(page, path);
    ASSERT_NE(section, "") << path;
    for (const std::string& name : option_names(command))
      EXPECT_NE(section.find(roff_name(name)), std::string::npos) << path << ' ' << name;
    for (const CLI::Option* option : command.get_options()) {
      const std::string name = "\\fI" + option->get_name(true) + "\\fR";
      EXPECT_TRUE(!option->get_positional() || section.find(name) != std::string::npos) << path;
    }
  });
  for (int i = 0; const char* name = headrace_env_name(i); ++i)
    EXPECT_NE(page.find(name), std::string::npos) << name;
}

TEST(ShellFiles, TheManPageIsFormattedWithoutAWarning) {
  if (!has_tool("groff")) GTEST_SKIP() << "no groff";
  const testing::TemporaryFolder folder;
  Program program;
  const std::string path = folder.file("headrace.1", man_page(commands_of(program.app)));
  EXPECT_EQ(output_of("groff -man -ww -b -z '" + path + "' 2>&1"), "");
}

TEST(ShellFiles, BashOffersEveryCommandAndOption) {
  if (!has_tool("bash")) GTEST_SKIP() << "no bash";
  const testing::TemporaryFolder folder;
  Program program;
  const std::string script = folder.file("script", bash_completion(commands_of(program.app)));
  for_each_command(program.app, "headrace", [&](const std::string& path, const CLI::App& command) {
    const std::set<std::string> offers = bash_offers(script, path + " -");
    const std::vector<std::string> names = option_names(command);
    EXPECT_EQ(offers, std::set<std::string>(names.begin(), names.end())) << path;
    const std::vector<std::string> commands = subcommands_of(command);
    if (commands.empty()) return;
    const std::set<std::string> all = bash_offers(script, path + " \"\"");
    for (const std::string& name : commands) EXPECT_TRUE(all.contains(name)) << path << ' ' << name;
  });
}

TEST(ShellFiles, BashOffersTheValuesOfEveryChoiceAndFilesForFiles) {
  if (!has_tool("bash")) GTEST_SKIP() << "no bash";
  const testing::TemporaryFolder folder;
  Program program;
  const std::string script = folder.file("script", bash_completion(commands_of(program.app)));
  const std::string model = folder.file("a model.gguf", "x");
  int choices = 0, files = 0;
  for_each_command(program.app, "headrace", [&](const std::string& path, const CLI::App& command) {
    for (const CLI::Option* option : command.get_options()) {
      if (option->get_lnames().empty() || option->get_items_expected_max() == 0) continue;
      const std::string words = path + " --" + option->get_lnames()[0];
      const std::string type = option->get_type_name();
      if (option->get_option_text().starts_with("FILE")) {
        const auto offers = bash_offers(script, words + " \"" + folder.file("a") + "\"");
        EXPECT_EQ(offers, std::set<std::string>{model}) << words;
        ++files;
      } else if (const std::size_t brace = type.find('{'); brace != std::string::npos) {
        std::string list;
        for (const std::string& value : bash_offers(script, words + " \"\""))
          list += (list.empty() ? "" : ",") + value;
        std::vector<std::string> expected;
        std::istringstream names(type.substr(brace + 1, type.find('}') - brace - 1));
        for (std::string name; std::getline(names, name, ',');) expected.push_back(name);
        std::sort(expected.begin(), expected.end());
        std::string sorted;
        for (const std::string& name : expected) sorted += (sorted.empty() ? "" : ",") + name;
        EXPECT_EQ(list, sorted) << words;
        ++choices;
      }
    }
  });
  EXPECT_GT(choices, 10);
  EXPECT_GT(files, 5);
}

// Checks the scripts' syntax if the shell is installed.
TEST(ShellFiles, ZshAndFishNameEveryOption) {
  const testing::TemporaryFolder folder;
  Program program;
  const auto commands = commands_of(program.app);
  const std::string zsh = zsh_completion(commands), fish = fish_completion(commands);
  for_each_command(program.app, "headrace", [&](const std::string& path, const CLI::App& command) {
    const std::size_t begin = zsh.find("    '" + path + "')\n");
    ASSERT_NE(begin, std::string::npos) << path;
    const std::string section = zsh.substr(begin, zsh.find(";;\n", begin) - begin);
    for (const std::string& name : option_names(command)) {
      EXPECT_NE(section.find("'*" + name + '['), std::string::npos) << path << ' ' << name;
      const bool is_long = name.starts_with("--");
      const std::string flag = is_long ? " -l " + name.substr(2) : " -s " + name.substr(1);
      EXPECT_NE(fish.find(flag + ' '), std::string::npos) << path << ' ' << name;
    }
    for (const std::string& name : subcommands_of(command)) {
      EXPECT_NE(section.find(name), std::string::npos) << path << ' ' << name;
      EXPECT_NE(fish.find(" -a " + name + " -d "), std::string::npos) << path << ' ' << name;
    }
  });
  for (const auto& [shell, script] : {std::pair{"zsh", zsh}, std::pair{"fish", fish}}) {
    if (!has_tool(shell)) continue;
    EXPECT_EQ(output_of(std::string(shell) + " -n '" + folder.file(shell, script) + "' 2>&1"), "");
  }
}

TEST(ShellFiles, FishOffersTheOptionsOfTheCommandAlone) {
  if (!has_tool("fish")) GTEST_SKIP() << "no fish";
  const testing::TemporaryFolder folder;
  Program program;
  const std::string script = folder.file("script", fish_completion(commands_of(program.app)));
  for_each_command(program.app, "headrace", [&](const std::string& path, const CLI::App& command) {
    const std::string out =
        output_of("fish -c 'source " + script + "; complete -C \"" + path + " --\"' | cut -f1");
    std::istringstream lines(out);
    std::set<std::string> offers, expected;
    for (std::string line; std::getline(lines, line);) offers.insert(line);
    for (const std::string& name : option_names(command))
      if (name.starts_with("--")) expected.insert(name);
    EXPECT_EQ(offers, expected) << path;
  });
}

// The program prints the files that cmake --install installs.
TEST(ShellFiles, TheProgramPrintsThem) {
  Program program;
  const auto commands = commands_of(program.app);
  EXPECT_EQ(testing::run_program("man").out, man_page(commands));
  EXPECT_EQ(testing::run_program("completion bash").out, bash_completion(commands));
  EXPECT_EQ(testing::run_program("completion zsh").out, zsh_completion(commands));
  EXPECT_EQ(testing::run_program("completion fish").out, fish_completion(commands));
  EXPECT_EQ(testing::run_program("completion ksh").exit_code, 2);
}

}  // namespace
}  // namespace headrace::cli
