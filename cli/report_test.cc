// Every command that prints tables, in every format: text fits 100 columns, other formats parse.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "program.h"
#include "tests/support/ceilings.h"
#include "tests/support/fake_server.h"
#include "tests/support/program.h"
#include "text_table.h"

namespace headrace::cli {
namespace {

using testing::run_program;

const std::string kModel = HEADRACE_GOLDEN_DIR "/tiny/tiny_llama3_f16.gguf";
const std::string kLlama2 = HEADRACE_GOLDEN_DIR "/tiny/tiny_llama2_q4_0.gguf";
const std::string kText = HEADRACE_GOLDEN_DIR "/text/prompts.txt";

struct Case {
  std::string command;    // "bench attention"
  std::string arguments;  // quick to run, with many and with few columns
};

#ifdef HEADRACE_HAS_BOOST
constexpr bool kHasBoost = true;
#else
constexpr bool kHasBoost = false;
#endif

// Answers every other request.
std::string server_url() {
  static testing::FakeServer server([](testing::FakeExchange& exchange) {
    exchange.send_head(exchange.idx % 2 == 0 ? "200 OK" : "429 Too Many Requests");
    exchange.send_token();
    exchange.send_token();
    exchange.send_last(3, 2);
  });
  return server.url();
}

std::vector<Case> cases() {
  const std::string quick = "--no-ceilings --min-time 0 --reps 1 --seqlen 32 ";
  ceilings_folder();  // roofline measures nothing
  std::vector<Case> all = {
      {"info", ""},
      {"kernels", ""},
      {"kernels", "--verbose"},
      {"kernels", "--backward --verbose"},
      {"explain attention", "--seqlen 64 --alibi --sinks --causal bottom-right --window 3,open"},
      {"explain attention", "--backward --seqlen 64,128 --device cpu:scalar:3 --bias"},
      {"explain model", "--like llama-3.1-8b"},
      {"explain model",
       "--like llama-3.1-8b --batch 64 --device cpu:avx2:4 --bandwidth 4450 --peak 800"},
      {"bench attention", quick},
      {"bench attention", quick + "--dtype f32,bf16,f16 --causal none,bottom-right --batch 1,2 "
                                  "--heads 4,8 --kv-heads 1,4 --head-dim 16,32 --backward"},
      {"bench attention", quick + "--dtype f32,bf16 --softcap 20 --lse --window 3,3 --alibi"},
      {"bench decode",
       "--seqlen-k 100,70 --batch 1,2 --heads 2 --kv-heads 1 --head-dim 32 --reps 1 --min-time 0"},
      {"bench kv", "--requests 1"},
      {"bench memory", "--seqlen 128"},
      {"bench memory", "--dtype f32,bf16 --causal none,top-left --head-dim 64,128 --batch 1,64"},
      {"bench softmax", "--length 7,64 --elements 1000 --reps 1"},
      {"bench sparq",
       "--seqlen 300 --components 4 --keys 16 --heads 2 --kv-heads 1 --head-dim 8 --reps 1"},
      {"bench engine", "-m " + kModel + " -p 20 -n 4 --requests 3 --streams 1,2"},
      {"bench model", "-m " + kModel + " -p 8,16 -n 4 -t 1,2 -r 1 --no-ceilings"},
      {"roofline", ""},
      {"roofline", "--call 'attention --seqlen 32,48 --dtype f32,bf16 --causal none,bottom-right'"},
      {"tune", "--rounds 1 --min-time 0 --warm --call 'attention --seqlen 8,16 --dtype f32,bf16'"},
      {"tokenize", "-m " + kModel + " 'Hello, world'"},
      {"perplexity", "-m " + kModel + " -w 64 -f " + kText},
      {"perplexity", "-m " + kModel + " -w 64 --kv-type int8 --kl-against f32 -f " + kText},
      {"inspect", kModel},
      {"inspect", kLlama2}};
  if (kHasBoost) all.push_back({"bench serve", "--model a --requests 4 --url " + server_url()});
  return all;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> commands_with_help(const CLI::App& app, const std::string& path) {
  std::vector<std::string> commands = {path + "--help"};
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    const auto more = commands_with_help(*sub, path + sub->get_name() + ' ');
    commands.insert(commands.end(), more.begin(), more.end());
  }
  return commands;
}

void find_reports(const CLI::App& app, const std::string& path, std::set<std::string>& found) {
  if (app.get_option_no_throw("--format") != nullptr) found.insert(path);
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    find_reports(*sub, path + (path.empty() ? "" : " ") + sub->get_name(), found);
}

TEST(Report, EveryCommandWithAFormatIsTestedHere) {
  CLI::App app;
  Action action;
  add_commands(app, action, "headrace");
  std::set<std::string> found, tested;
  find_reports(app, "", found);
  if (!kHasBoost) found.erase("bench serve");
  for (const Case& one : cases()) tested.insert(one.command);
  EXPECT_EQ(tested, found);
}

TEST(Report, TextFits100Columns) {
  for (const Case& one : cases()) {
    const auto result = run_program(one.command + ' ' + one.arguments);
    EXPECT_EQ(result.exit_code, 0) << one.command;
    EXPECT_NE(result.out, "") << one.command;
    for (const std::string& line : lines_of(result.out))
      EXPECT_TRUE(line.starts_with("command: ") || text_width(line) <= 100) << line;
  }
}

TEST(Report, HelpFits100Columns) {
  CLI::App app;
  Action action;
  add_commands(app, action, "headrace");
  for (const std::string& command : commands_with_help(app, "")) {
    const auto result = run_program(command);
    EXPECT_EQ(result.exit_code, 0) << command;
    for (const std::string& line : lines_of(result.out))
      EXPECT_LE(text_width(line), 100u) << command << ": " << line;
  }
}

TEST(Report, JsonHasARowForEachRowOfCsvWithTheSameColumns) {
  for (const Case& one : cases()) {
    const std::string command = one.command + ' ' + one.arguments;
    const auto json = nlohmann::ordered_json::parse(run_program(command + " --format json").out);
    const auto csv = run_program(command + " --format csv");
    EXPECT_EQ(csv.exit_code, 0) << command;
    std::size_t num_lines = 0, num_tables = 0;
    for (const auto& [key, table] : json.items()) {
      if (key == "meta") continue;
      ++num_tables;
      num_lines += table.size() + 1;  // titles
      if (table.empty()) continue;
      std::string titles;
      for (const auto& [name, value] : table[0].items())
        titles += (titles.empty() ? "" : ",") + name;
      EXPECT_NE(csv.out.find(titles + '\n'), std::string::npos) << command;
    }
    ASSERT_GT(num_tables, 0u) << command;
    if (one.command == "explain attention") continue;  // its quoted fields contain line ends
    const auto lines = lines_of(csv.out);
    EXPECT_EQ(lines.size(), num_lines + num_tables - 1) << command;
  }
}

TEST(Report, MarkdownTablesHaveOneWidth) {
  const auto num_bars = [](const std::string& line) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < line.size(); ++i)
      count += line[i] == '|' && (i == 0 || line[i - 1] != '\\');
    return count;
  };
  for (const Case& one : cases()) {
    const auto result = run_program(one.command + ' ' + one.arguments + " --format md");
    EXPECT_EQ(result.exit_code, 0) << one.command;
    std::size_t bars = 0, num_rows = 0;
    for (const std::string& line : lines_of(result.out)) {
      const bool is_row = line.starts_with("| ") || line.starts_with("|---");
      if (is_row && bars == 0) bars = num_bars(line);
      EXPECT_TRUE(!is_row || num_bars(line) == bars) << line;
      if (!is_row) bars = 0;
      num_rows += is_row;
    }
    EXPECT_GE(num_rows, 3u) << one.command;
  }
}

}  // namespace
}  // namespace headrace::cli
