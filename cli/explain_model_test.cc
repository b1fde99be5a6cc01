// headrace explain model, run from a shell.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "tests/support/program_json.h"

namespace {

using headrace::testing::json_of;
using headrace::testing::ProgramResult;
using headrace::testing::run_program;
using headrace::testing::TemporaryFolder;

TEST(ExplainModel, PredictsTheLeastTimeOfEachOperator) {
  const auto json = json_of(
      "explain model --like smollm2-135m --type q8_0 -b 4 -c 512 --bandwidth 20 --peak 0.5");
  double microseconds = 0, bytes = 0, percent = 0;
  for (const auto& row : json["operators"]) {
    if (row["operator"] == "total") {
      EXPECT_NEAR(row["microseconds"].get<double>(), microseconds, 1e-9 * microseconds);
      EXPECT_NEAR(row["bytes"].get<double>(), bytes, 1e-9 * bytes);
      continue;
    }
    const double memory = row["bytes"].get<double>() / 20e3;
    const double arithmetic = row["flops"].get<double>() / 0.5e6;
    EXPECT_NEAR(row["microseconds"].get<double>(), std::max(memory, arithmetic), 1e-9) << row;
    EXPECT_EQ(row["bound"], memory >= arithmetic ? "memory" : "arithmetic") << row;
    microseconds += row["microseconds"].get<double>();
    bytes += row["bytes"].get<double>();
    percent += row["percent"].get<double>();
  }
  EXPECT_NEAR(percent, 100, 1e-6);
  // The weights are read once a step: 134.5 million in blocks of 34 bytes.
  EXPECT_GT(bytes, 134.5e6 * 34 / 32);
  EXPECT_NEAR(json["meta"]["at_most_tokens_per_s"].get<double>(), 4 / microseconds * 1e6, 1e-3);
}

// Of decode, and of prompts of any length.
TEST(ExplainModel, TokensPerSecondAreThoseOfTheWholeStep) {
  for (const int batch : {1, 4})
    for (const int prompt : {0, 1, 2, 100}) {
      const auto json =
          json_of("explain model --like smollm2-135m -c 200 --bandwidth 20 --peak 0.5 -b " +
                  std::to_string(batch) + " -p " + std::to_string(prompt));
      const int num_tokens = batch * std::max(prompt, 1);
      const double microseconds = json["operators"].back()["microseconds"];
      const double expected = num_tokens / microseconds * 1e6;
      EXPECT_NEAR(json["meta"]["at_most_tokens_per_s"].get<double>(), expected, 1e-6 * expected)
          << batch << " prompts of " << prompt;
    }
}

// 32 layers of 8 heads of 128: a token has 2 bytes an element whole, in int8 1 and a scale, in int4
// half of that. The newest 16 of 65536 are whole.
TEST(ExplainModel, StoredTypesChangeTheBytesOfAttention) {
  const auto bytes_of = [](const std::string& types) {
    const auto json = json_of("explain model --like llama-3.1-8b -c 65536 " + types);
    for (const auto& row : json["operators"])
      if (row["operator"] == "attention") return row["bytes"].get<double>();
    return 0.0;
  };
  const double rows = 32.0 * 8 * 65536, whole = bytes_of("");
  EXPECT_NEAR(whole, rows * 512, 1e-3 * whole);
  EXPECT_NEAR(bytes_of("--kv-type int8"), rows * (2 * 128 + 8), 1e-3 * whole);
  EXPECT_NEAR(bytes_of("--k-type fp8 --v-type int4"), rows * (128 + 64 + 8), 1e-3 * whole);
  EXPECT_NEAR(bytes_of("--k-type kivi2 --v-type kivi4"), rows * (32 + 64 + 2 * 16), 1e-3 * whole);
}

TEST(ExplainModel, AFileIsExplainedAsItsShape) {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.gguf");
  ASSERT_EQ(run_program("make-model --like smollm2-135m --type q4_0 -o " + path).exit_code, 0);
  const std::string step = " -p 100 -c 200 -b 2 ";
  const auto of_file = json_of("explain model -m " + path + step);
  const auto of_shape = json_of("explain model --like smollm2-135m --type q4_0" + step);
  EXPECT_EQ(of_file["operators"], of_shape["operators"]);
  EXPECT_EQ(of_file["meta"]["step"], "prefill");
  EXPECT_TRUE(of_file["operators"][0]["microseconds"].is_null());
}

TEST(ExplainModel, TextFits100Columns) {
  const ProgramResult result =
      run_program("explain model --like llama-3.1-8b -b 64 -c 131072 --bandwidth 20 --peak 0.5");
  EXPECT_EQ(result.exit_code, 0);
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

TEST(ExplainModel, UsageErrorsExitWith2) {
  for (const char* arguments :
       {"", "-m x --like smollm2-135m", "-m x --type f32", "--like x", "--like smollm2-135m -b 0",
        "--like smollm2-135m -c 9000", "--like smollm2-135m -c 10 -p 11",
        "--like smollm2-135m --bandwidth 5", "--like smollm2-135m --bandwidth 0 --peak 1",
        "--like smollm2-135m --device x", "--like smollm2-135m --cache-type f8"}) {
    const ProgramResult result = run_program(std::string("explain model ") + arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_EQ(result.out, "") << arguments;
  }
}

}  // namespace
