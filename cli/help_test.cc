// What help says of every command: its texts, and defaults that are those of the command.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "command_tree.h"
#include "headrace/headrace.hpp"
#include "manual.h"
#include "program.h"
#include "tests/support/ceilings.h"
#include "tests/support/golden_texts.h"
#include "tests/support/program.h"

namespace headrace::cli {
namespace {

using testing::run_program;

struct Program {
  CLI::App app;
  Action action;
  Program() { add_commands(app, action, "headrace"); }

  const CLI::App& command(const std::string& path) const {
    const CLI::App* found = &app;
    std::istringstream names(path);
    for (std::string name; names >> name;) found = found->get_subcommand(name);
    return *found;
  }
  bool takes(const std::string& arguments) {
    try {
      app.parse(arguments);
      return true;
    } catch (const CLI::ParseError&) {
      return false;
    }
  }
};

std::string names_of(const std::set<CLI::Option*>& options) {
  std::set<std::string> names;
  for (const CLI::Option* option : options) names.insert(option->get_name());
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

void add_options(const CLI::App& command, const std::string& path, testing::GoldenTexts& texts) {
  texts.add(path + ": " + command.get_description() + " | " + command.get_footer());
  for (const CLI::Option* option : command.get_options())
    texts.add(path + ' ' + option->get_name(true, true) + " | " + option->get_option_text() +
              " | " + option->get_type_name() + " | " + option->get_description() + " | " +
              option->get_group() + (option->get_required() ? " | required" : "") + " | needs " +
              names_of(option->get_needs()) + " | excludes " + names_of(option->get_excludes()));
  for (const CLI::App* sub : command.get_subcommands([](const CLI::App*) { return true; }))
    add_options(*sub, path + ' ' + sub->get_name(), texts);
}

TEST(Help, HasItsTexts) {
#ifndef HEADRACE_HAS_BOOST
  GTEST_SKIP() << "without Boost serve has no options";
#endif
  testing::GoldenTexts texts("help.txt");
  const Program program;
  add_options(program.app, "headrace", texts);
  std::string page = man_page(commands_of(program.app));
  const std::size_t begin = page.find(".SH COMMANDS");  // the same texts again
  page.erase(begin, page.find(".SH ENVIRONMENT") - begin);
  const std::string version = std::string("headrace ") + headrace::version();
  page.replace(page.find(version), version.size(), "headrace VERSION");
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) texts.add(line);
}

// ---- defaults ----

// "16" of "N [16]", "512" of "N [512; cuda: 8192]".
std::string default_of(const CLI::Option& option) {
  const std::string form = option.get_option_text();
  const std::size_t begin = form.find('[');
  if (begin == std::string::npos || !option.get_needs().empty()) return {};
  return form.substr(begin + 1, form.find_first_of(";]", begin) - begin - 1);
}

// The options of a command that the arguments leave out, with the defaults that help names.
std::string defaults_of(const std::string& command, const std::string& arguments) {
  std::string defaults;
  const Program program;
  for (const CLI::Option* option : program.command(command).get_options()) {
    const std::string value = default_of(*option), names = option->get_name(false, true);
    if (value.empty() || names == "--format") continue;
    bool is_given = false;
    std::istringstream list(names);
    for (std::string name; std::getline(list, name, ',');)
      is_given = is_given || (' ' + arguments + ' ').find(' ' + name + ' ') != std::string::npos;
    const std::string more = ' ' + names.substr(0, names.find(',')) + ' ' + value;
    // Others are words, such as "as --cache-type".
    if (!is_given && Program().takes(command + ' ' + arguments + more)) defaults += more;
  }
  return defaults;
}

// Without what was measured: numbers that are not whole, and the command line.
nlohmann::json without_times(const nlohmann::json& report) {
  nlohmann::json kept;
  for (const auto& [key, value] : report.items()) {
    if (key == "command" || key == "date" || value.is_number_float()) continue;
    kept[key] = value.is_structured() ? without_times(value) : value;
  }
  return kept;
}

const std::string kModel = " -m " HEADRACE_GOLDEN_DIR "/tiny/tiny_llama3_f16.gguf ";

TEST(Help, DefaultsAreThoseOfTheCommand) {
  const std::string quick = "--no-ceilings --min-time 0 --reps 1 ";
  const std::pair<std::string, std::string> reports[] = {
      {"kernels", ""},
      {"explain attention", ""},
      {"explain model", "--like llama-3.1-8b"},
      {"bench attention", quick + "--seqlen 32 --batch 1"},
      {"bench decode", "--seqlen-k 64 --heads 2 --kv-heads 1 --head-dim 32 --reps 1 --min-time 0"},
      {"bench memory", "--device cpu:scalar:3"},
      {"bench softmax", "--length 7 --elements 1000 --reps 1"},
      {"bench model", kModel + "-p 8 -n 4 -r 1 -t 1 --no-ceilings"},
      {"tokenize", kModel + "ab"},
      {"perplexity", kModel + "-w 64 -f " HEADRACE_GOLDEN_DIR "/text/prompts.txt"},
      {"inspect", HEADRACE_GOLDEN_DIR "/tiny/tiny_llama3_f16.gguf"}};
  ceilings_folder();
  for (const auto& [command, arguments] : reports) {
    const std::string plain = command + ' ' + arguments + ' ';
    const auto of = [](const std::string& line) {
      const auto result = run_program(line + " --format json");
      EXPECT_EQ(result.exit_code, 0) << line;
      return without_times(nlohmann::json::parse(result.out));
    };
    EXPECT_EQ(of(plain), of(plain + defaults_of(command, arguments)))
        << plain << defaults_of(command, arguments);
  }
  const std::pair<std::string, std::string> texts[] = {
      {"generate", kModel + "Hello -n 20"},
      {"generate", kModel + "Hello -n 20 --temp 2 --repeat-penalty 1.5"},
      {"generate", kModel + "Hello -n 6 --beam-width 2"}};
  for (const auto& [command, arguments] : texts) {
    const std::string plain = command + ' ' + arguments;
    EXPECT_EQ(run_program(plain).out, run_program(plain + defaults_of(command, arguments)).out)
        << plain << defaults_of(command, arguments);
  }
}

}  // namespace
}  // namespace headrace::cli
