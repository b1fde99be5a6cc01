// Reports that do not depend on the machine, in every format, in full; the columns of the others.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "headrace/headrace.hpp"
#include "tests/support/ceilings.h"
#include "tests/support/golden_texts.h"
#include "tests/support/program_json.h"

namespace headrace::cli {
namespace {

using testing::run_program;
using testing::TemporaryFolder;

const std::string kTiny = HEADRACE_GOLDEN_DIR "/tiny/";
const std::string kModel = "-m " + kTiny + "tiny_llama3_f16.gguf ";

// Without the folder of the files, the version of the library and the cache of the machine.
std::string portable(std::string text) {
  for (const auto& [part, name] : {std::pair<std::string, std::string>{kTiny, "TINY/"},
                                   {HEADRACE_GOLDEN_DIR, "GOLDEN"},
                                   {std::string("headrace ") + version(), "headrace VERSION"}})
    for (std::size_t at; (at = text.find(part)) != std::string::npos;)
      text.replace(at, part.size(), name);
  return std::regex_replace(text, std::regex("L2 [0-9]+ KiB"), "L2 ... KiB");
}

void add_lines(const std::string& text, testing::GoldenTexts& texts) {
  std::istringstream lines(portable(text));
  for (std::string line; std::getline(lines, line);) texts.add(line);
}

// Behind the notes about the machine, which end with an empty line.
std::string without_notes(const std::string& text) {
  return text.substr(std::min(text.find("\n\n"), text.size()));
}

// In f64, because the tiles of other dtypes follow the machine's caches.
TEST(ReportTexts, OfEveryFormat) {
#ifndef __x86_64__
  GTEST_SKIP() << "the list of kernels is another one";
#endif
  testing::GoldenTexts texts("reports.txt");
  for (const std::string command :
       {"explain attention --dtype f64 --device cpu:avx2:8 --seqlen 64 --causal bottom-right "
        "--window 3,open",
        "explain attention --dtype f64 --device cpu:scalar:3 --backward --seqlen 64,128 --bias",
        "explain model --like llama-3.1-8b --batch 64 --device cpu:avx2:4 --bandwidth 4450 "
        "--peak 800",
        "kernels --device cpu:scalar --verbose"})
    for (const std::string format : {"text", "csv", "json", "md"}) {
      texts.add(command + " --format " + format);
      const auto result = run_program(command + " --format " + format);
      EXPECT_EQ(result.exit_code, 0) << command;
      add_lines(result.out, texts);
    }
  const std::string memory =
      "bench memory --dtype f64 --device cpu:scalar:16 --seqlen 64,2048 --batch 2 --heads 4 "
      "--kv-heads 2 ";
  add_lines(without_notes(run_program(memory).out), texts);
  add_lines(without_notes(run_program(memory + "--format md").out), texts);
  add_lines(run_program(memory + "--format csv").out, texts);
  auto kv = testing::json_of("bench kv --requests 3");
  for (auto& row : kv["rows"]) {
    row.erase("us_per_token");
    texts.add(row.dump());
  }
  for (const std::string& command :
       {"inspect " + kTiny + "tiny_qwen2_q5_0.gguf", "tokenize " + kModel + "'Hello, w\u00f6rld\n'",
        "tokenize --ids " + kModel + "'Hello, world'"}) {
    texts.add(portable(command));
    add_lines(run_program(command).out, texts);
  }
}

// Titles and alignment as Markdown has them, keys as JSON does.
TEST(ReportTexts, ColumnsOfEveryTable) {
  testing::GoldenTexts texts("reports.txt");
  ceilings_folder();
  const std::string quick = "--no-ceilings --min-time 0 --reps 1 ";
  for (const std::string& command :
       {std::string("info"), std::string("kernels --backward"),
        "bench attention --seqlen 32 " + quick,
        std::string("bench decode --seqlen-k 64 --heads 2 --kv-heads 1 --head-dim 32 --reps 1 "
                    "--min-time 0"),
        std::string("bench softmax --length 7 --elements 1000 --reps 1"),
        std::string("bench sparq --seqlen 300 --components 4 --keys 16 --heads 2 --kv-heads 1 "
                    "--head-dim 8 --reps 1"),
        "bench engine -p 20 -n 4 --requests 2 --streams 1 " + kModel,
        "bench model -p 8 -n 4 -t 1 -r 1 --no-ceilings " + kModel, std::string("roofline"),
        std::string("roofline --call 'attention --seqlen 32'"),
        "perplexity -w 64 -f " HEADRACE_GOLDEN_DIR "/text/prompts.txt " + kModel,
        "perplexity -w 64 --kv-type int8 --kl-against f32 -f " HEADRACE_GOLDEN_DIR
        "/text/prompts.txt " +
            kModel}) {
    texts.add(portable(command));
    std::istringstream lines(run_program(command + " --format md").out);
    std::string before;
    for (std::string line; std::getline(lines, line); before = line)
      if (line.starts_with("|--") || line.starts_with("|:-")) {
        texts.add(before);
        texts.add(line);
      }
    const auto json = nlohmann::ordered_json::parse(run_program(command + " --format json").out);
    for (const auto& [name, table] : json.items()) {
      std::string keys = name + ':';
      const auto& row = table.is_array() && !table.empty() ? table[0] : table;
      if (!row.is_object()) continue;
      for (const auto& [key, value] : row.items()) keys += ' ' + key;
      texts.add(keys);
    }
  }
}

}  // namespace
}  // namespace headrace::cli
