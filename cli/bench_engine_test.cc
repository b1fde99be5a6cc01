// headrace bench engine: counts that follow from its options, and rates of the time that it shows.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/support/program_json.h"

namespace headrace::cli {
namespace {

using testing::json_of;
using testing::run_program;

const std::string kModel = HEADRACE_GOLDEN_DIR "/tiny/tiny_llama3_f16.gguf";

nlohmann::json rows_of(const std::string& options) {
  return json_of("bench engine -m " + kModel + ' ' + options)["rows"];
}

void expect_rates(const nlohmann::json& row) {
  const double seconds = row["seconds"];
  const double answers = row["requests"].get<double>() * row["answer_tokens"].get<double>();
  const double prompts = row["requests"].get<double>() * row["prompt_tokens"].get<double>();
  EXPECT_GT(seconds, 0);
  EXPECT_NEAR(row["answer_tokens_per_s"].get<double>() * seconds, answers, 1e-6 * answers);
  EXPECT_NEAR(row["total_tokens_per_s"].get<double>() * seconds, answers + prompts,
              1e-6 * (answers + prompts));
  // In milliseconds, of a part of the run.
  EXPECT_GT(row["ttft_ms_median"], 0);
  EXPECT_LE(row["ttft_ms_median"].get<double>(), seconds * 1e3);
  EXPECT_LE(row["itl_ms_median"], row["itl_ms_p99"]);
  EXPECT_LE(row["itl_ms_p99"].get<double>(), seconds * 1e3);
}

// One sequence at a time: a step for each token, of which the first is computed with the prompt.
TEST(BenchEngine, StepsOfOneStreamAreTheTokens) {
  for (const int num_requests : {1, 3})
    for (const int prompt : {1, 20})
      for (const int answer : {1, 4}) {
        const auto rows =
            rows_of("--streams 1 --requests " + std::to_string(num_requests) + " -p " +
                    std::to_string(prompt) + " -n " + std::to_string(answer));
        ASSERT_EQ(rows.size(), 1u);
        const auto& row = rows[0];
        EXPECT_EQ(row["streams"], 1);
        EXPECT_EQ(row["requests"], num_requests);
        EXPECT_EQ(row["prompt_tokens"], prompt);
        EXPECT_EQ(row["answer_tokens"], answer);
        EXPECT_EQ(row["steps"], num_requests * answer);
        EXPECT_GT(row["host_us_per_step"], 0);
        EXPECT_GT(row["host_us_median"], 0);
        expect_rates(row);
      }
}

// A row for each number of streams. As many as there are requests: all tokens of a step together.
TEST(BenchEngine, StreamsAreComputedTogether) {
  const auto rows = rows_of("--streams 1,2,6,9 --requests 6 -p 5 -n 7");
  ASSERT_EQ(rows.size(), 4u);
  const int streams[] = {1, 2, 6, 9}, steps[] = {42, 21, 7, 7};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(rows[i]["streams"], streams[i]);
    EXPECT_EQ(rows[i]["steps"], steps[i]);
    expect_rates(rows[i]);
  }
}

// At a high temperature some answers would end before their length.
TEST(BenchEngine, AnswersDoNotEndBeforeTheirLength) {
  for (const std::string sampling :
       {"", " --temperature 100000", " --temp 9 --top-k 99 --top-p 0.9 --min-p 0.01"}) {
    const auto rows = rows_of("--streams 8 --requests 30 -p 2 -n 100" + sampling);
    expect_rates(rows[0]);
  }
}

// A step takes no more tokens than these: two prompts of 60 need two steps more.
TEST(BenchEngine, TokensOfAStepAreBounded) {
  const std::string load = "--streams 3 --requests 3 -p 60 -n 5 ";
  EXPECT_EQ(rows_of(load)[0]["steps"], 5);
  EXPECT_GT(rows_of(load + "-b 70")[0]["steps"].get<int>(), 5);
}

// A trace has lengths of its own, and its requests come when it says.
TEST(BenchEngine, TracesAreReplayed) {
  const std::string path = ::testing::TempDir() + "/trace.jsonl";
  const auto replay = [&](int last_ms) {
    std::ofstream(path) << "{\"timestamp\": 0, \"input_length\": 6, \"output_length\": 4}\n"
                        << "{\"timestamp\": " << last_ms
                        << ", \"input_length\": 3, \"output_length\": 2}\n";
    return rows_of("--streams 2 --trace " + path)[0];
  };
  const auto together = replay(0);
  EXPECT_EQ(together["requests"], 2);
  EXPECT_EQ(together["prompt_tokens"], 4.5);
  EXPECT_EQ(together["answer_tokens"], 3);
  EXPECT_EQ(together["steps"], 4);
  expect_rates(together);
  EXPECT_EQ(together["trace"], path);
  EXPECT_EQ(rows_of("--streams 1 --requests 1 -p 1 -n 1")[0]["trace"], nullptr);
  const auto several = rows_of("--streams 2,1 --trace " + path + " --trace " + path);
  ASSERT_EQ(several.size(), 4u);
  EXPECT_EQ(several[3]["steps"], 6);
  const auto apart = replay(400);  // the first has ended, long ago
  EXPECT_EQ(apart["steps"], 6);
  EXPECT_GT(apart["seconds"], 0.4);
  EXPECT_LT(apart["ttft_ms_p99"], 300) << "waits from its arrival, not from the start";
  expect_rates(apart);
}

TEST(BenchEngine, TracesMustBeReadable) {
  const std::string command = "bench engine --streams 1 -m " + kModel + " --trace ";
  const std::string path = ::testing::TempDir() + "/wrong.jsonl";
  std::ofstream(path) << "{}\n";
  const auto wrong = run_program(command + path + " 2>&1");
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_NE(wrong.out.find("wrong.jsonl:1: "), std::string::npos) << wrong.out;
  EXPECT_NE(run_program(command + path + ".none").exit_code, 0);
  EXPECT_EQ(run_program(command + path + " -n 5").exit_code, 2) << "lengths from two places";
}

TEST(BenchEngine, NamesWhatRan) {
  const auto json = json_of("bench engine --requests 1 --streams 1 -p 2 -n 2 -m " + kModel);
  EXPECT_EQ(json["meta"]["device"], "cpu");
  EXPECT_EQ(json["meta"]["model"], "tiny_llama3_f16");
  EXPECT_EQ(json["meta"]["weights"],
            json_of("bench model -p 2 -n 0 -r 1 --no-ceilings -m " + kModel)["meta"]["weights"]);
}

TEST(BenchEngine, RequestsMustFitTheContext) {
  const std::string command = "bench engine --requests 1 --streams 1 -m " + kModel;
  EXPECT_EQ(run_program(command + " -p 120 -n 8").exit_code, 0);
  for (const std::string options : {" -p 121 -n 8", " -p 10 -n 10 -c 19"}) {
    const auto result = run_program(command + options + " 2>&1");
    EXPECT_EQ(result.exit_code, 2) << options;
    EXPECT_NE(result.out.find("request"), std::string::npos) << result.out;
  }
  EXPECT_EQ(run_program("bench engine --requests 1").exit_code, 2) << "no model";
}

}  // namespace
}  // namespace headrace::cli
