// The program run from a shell: exit codes, streams, parseable output.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "tests/support/program_json.h"

namespace {

using Result = headrace::testing::ProgramResult;
using headrace::testing::json_of;
using headrace::testing::run_program;

TEST(Program, UsageErrorsExitWith2AndLeaveStdoutEmpty) {
  for (const char* arguments :
       {"", "nonsense", "--nonsense", "bench", "bench attention --batch 1,x",
        "bench attention --batch 0", "bench attention --reps 0", "bench attention --layout x",
        "kernels --format x", "kernels --device nowhere", "explain attention --dtype f8",
        "explain attention --window 3", "explain attention --heads 8 --kv-heads 3",
        "explain attention --softcap -1", "info extra", "bench memory --seqlen 0",
        "bench memory --window 3,3"}) {
    const Result result = run_program(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_EQ(result.out, "") << arguments;
  }
}

TEST(Program, HelpAndVersionExitWith0) {
  EXPECT_EQ(run_program("--version").out.rfind("headrace ", 0), 0u);
  for (const char* arguments :
       {"--version", "--help", "bench --help", "bench attention --help", "bench memory --help",
        "explain attention --help", "kernels --help", "info --help"}) {
    const Result result = run_program(arguments);
    EXPECT_EQ(result.exit_code, 0) << arguments;
    EXPECT_NE(result.out, "") << arguments;
  }
}

TEST(Program, FailuresExitWith1) {
  EXPECT_EQ(run_program("info > /dev/full").exit_code, 1);
  EXPECT_EQ(run_program("explain attention --device sm70:80").exit_code, 1);
}

TEST(Program, ErrorsGoToStderr) {
  const Result result = run_program("kernels --device nowhere 2>&1 >/dev/null");
  EXPECT_NE(result.out.find("headrace: "), std::string::npos);
  EXPECT_NE(result.out.find("nowhere"), std::string::npos);
}

TEST(Program, InfoListsBuildAndMachine) {
  const auto json = json_of("info");
  ASSERT_FALSE(json["info"].empty());
  EXPECT_EQ(json["info"][0]["name"], "version");
  setenv("HEADRACE_NUM_THREADS", "3", 1);
  const Result result = run_program("info --format csv");
  unsetenv("HEADRACE_NUM_THREADS");
  EXPECT_NE(result.out.find("HEADRACE_NUM_THREADS,3\n"), std::string::npos);
  EXPECT_NE(result.out.find("(unset) forces one kernel by its name"), std::string::npos);
}

TEST(Program, KernelsPrintsASupportMatrix) {
  const auto json = json_of("kernels --verbose");
  ASSERT_FALSE(json["kernels"].empty());
  std::size_t refusals = 0;
  for (const auto& row : json["kernels"]) {
    EXPECT_FALSE(row["kernel"].get<std::string>().empty());
    EXPECT_FALSE(row["head_dim"].get<std::string>().empty());
    for (const auto& [key, value] : row.items()) refusals += value.is_boolean() && !value;
  }
  EXPECT_EQ(json["refusals"].size(), refusals) << "every \"no\" needs a reason";
  for (const auto& row : json["refusals"]) EXPECT_FALSE(row["reason"].get<std::string>().empty());
}

TEST(Program, ExplainNamesTheKernel) {
  const auto json = json_of("explain attention --seqlen 64,128 --causal bottom-right");
  ASSERT_EQ(json["plans"].size(), 2u);
  const std::string kernel = json["plans"][0]["kernel"];
  EXPECT_NE(json["plans"][0]["explain"].get<std::string>().find(kernel), std::string::npos);
  const auto gradients = json_of("explain attention --backward --deterministic --seqlen 64");
  const std::string explained = gradients["plans"][0]["explain"];
  EXPECT_NE(explained.find("lse, backward, deterministic"), std::string::npos);
  const Result text = run_program("explain attention --device cpu:scalar:3");
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_NE(text.out.find("3 threads"), std::string::npos);
}

// f64 runs only in the slow fallback of the CPU.
TEST(Program, StrictRefusesTheSlowFallbackAlone) {
  for (const char* options :
       {"", "--backward", "--causal bottom-right", "--ragged --batch 2", "--bias --mask"}) {
    for (const std::string dtype : {"f32", "f16", "bf16", "f64"}) {
      const bool is_fallback = dtype == "f64";
      const std::string command =
          "explain attention --seqlen 64 --dtype " + dtype + ' ' + options + ' ';
      EXPECT_EQ(json_of(command)["plans"][0]["is_fallback"], is_fallback) << command;
      const Result strict = run_program(command + "--strict 2>&1");
      EXPECT_EQ(strict.exit_code, is_fallback ? 1 : 0) << command << strict.out;
      EXPECT_EQ(strict.out.find("strict_fallback=1: only the slow fallback") != std::string::npos,
                is_fallback)
          << command << strict.out;
    }
  }
}

TEST(Program, KernelsAreThoseOfThePhaseAndTheDevice) {
  for (const std::string phase : {"", " --backward"}) {
    const auto all = json_of("kernels" + phase)["kernels"];
    for (const std::string dtype : {"f32", "f64"}) {
      const std::string kernel =
          json_of("explain attention --dtype " + dtype + phase)["plans"][0]["kernel"];
      EXPECT_EQ(std::count_if(all.begin(), all.end(),
                              [&](const auto& row) { return row["kernel"] == kernel; }),
                1)
          << kernel;
    }
    const std::string scalar = phase.empty() ? "cpu_scalar_fwd" : "cpu_scalar_bwd";
    const auto kernels = json_of("kernels --device cpu:scalar" + phase);
    for (const auto& row : kernels["kernels"])
      EXPECT_EQ(row["here"], row["kernel"] == scalar || row["f64"] == true) << row;
  }
}

TEST(Program, BenchReportsEveryCall) {
  const auto json = json_of(
      "bench attention --no-ceilings --min-time 0 --reps 2 --threads 2 --batch 2 --heads 4 "
      "--kv-heads 2 --seqlen 32,64 --head-dim 32 --dtype f32,bf16 --causal none,bottom-right "
      "--window 16,0 --lse");
  EXPECT_EQ(json["meta"]["threads"], 2);
  ASSERT_EQ(json["rows"].size(), 8u);
  for (const auto& row : json["rows"]) {
    EXPECT_GT(row["ms_median"].get<double>(), 0);
    EXPECT_LE(row["ms_min"], row["ms_median"]);
    EXPECT_LE(row["ms_median"], row["ms_max"]);
    EXPECT_EQ(row["reps"], 2);
    EXPECT_EQ(row["features"], "window 16/0, lse");
    EXPECT_TRUE(row["percent_of_fma_peak"].is_null());
    EXPECT_TRUE(row["tile_m"].is_number_integer()) << "the schedule text changed its format";
    EXPECT_TRUE(row["max_splits"].is_number_integer());
  }
}

// One call: 2 matmuls over 2 * 4 heads * 32 * 32 pairs * head_dim 16, in the milliseconds shown.
TEST(Program, BenchReportsRatesOfTheTimeItShows) {
  const auto row = json_of(
      "bench attention --no-ceilings --min-time 0 --reps 3 --batch 2 --heads 4 "
      "--seqlen 32 --head-dim 16")["rows"][0];
  const double seconds = row["ms_median"].get<double>() * 1e-3;
  const double flops = 2. * 2 * 2 * 4 * 32 * 32 * 16, bytes = 4. * 4 * 2 * 4 * 32 * 16;
  EXPECT_NEAR(row["gflops"].get<double>() * seconds * 1e9, flops, 1e-6 * flops);
  EXPECT_NEAR(row["gbytes"].get<double>() * seconds * 1e9, bytes, 1e-6 * bytes);
  EXPECT_LT(seconds, 10) << "milliseconds, not seconds";
  EXPECT_GT(seconds, 1e-8);
}

TEST(Program, BenchTakesEveryFeature) {
  for (const char* feature :
       {"--ragged --batch 3", "--bias", "--mask", "--alibi", "--sinks", "--dropout 0.1",
        "--softcap 20", "--layout bhsd", "--head-dim-v 16", "--ragged --batch 2 --bias --mask"}) {
    const auto json = json_of(
        std::string("bench attention --no-ceilings --min-time 0 --reps 1 --seqlen 40 ") + feature);
    EXPECT_EQ(json["rows"].size(), 1u) << feature;
  }
}

TEST(Program, BenchTimesTheBackwardToo) {
  const std::string command =
      "bench attention --no-ceilings --min-time 0 --reps 2 --seqlen 48 --head-dim 32 "
      "--causal bottom-right --dtype f32,bf16 ";
  const auto forward = json_of(command), backward = json_of(command + "--backward");
  ASSERT_EQ(backward["rows"].size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto &f = forward["rows"][i], &b = backward["rows"][i];
    EXPECT_EQ(f["phase"], "forward");
    EXPECT_EQ(b["phase"], "backward");
    EXPECT_NE(f["kernel"], b["kernel"]);
    EXPECT_EQ(b["reps"], 2);
    EXPECT_TRUE(b["tile_m"].is_number_integer()) << "the schedule text changed its format";
    const auto work = [](const auto& row) {
      return row["gflops"].template get<double>() * row["ms_median"].template get<double>();
    };
    EXPECT_NEAR(work(b) / work(f), 2.5, 1e-9);
  }
  for (const char* feature :
       {"--ragged --batch 3", "--bias", "--mask", "--alibi", "--sinks", "--dropout 0.1", "--lse",
        "--softcap 20", "--layout bhsd", "--head-dim-v 16", "--ragged --batch 2 --bias --mask",
        "--deterministic", "--window 16,0", "--dtype f64", "--cold", "--seqlen-k 20"}) {
    const auto json = json_of(
        std::string("bench attention --backward --no-ceilings --min-time 0 --reps 1 --seqlen 40 ") +
        feature);
    EXPECT_EQ(json["rows"].size(), 1u) << feature;
  }
}

TEST(Program, AForcedKernelOfTheBackwardIsTimed) {
  setenv("HEADRACE_KERNEL", "cpu_scalar_bwd", 1);
  const auto json =
      json_of("bench attention --backward --no-ceilings --min-time 0 --reps 1 --seqlen 40,50");
  unsetenv("HEADRACE_KERNEL");
  ASSERT_EQ(json["rows"].size(), 2u);
  for (const auto& row : json["rows"]) EXPECT_EQ(row["kernel"], "cpu_scalar_bwd");
}

TEST(Program, DeterministicAsksForTheBackward) {
  const Result result = run_program("bench attention --deterministic 2>&1");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.out.find("--deterministic requires --backward"), std::string::npos);
}

TEST(Program, BenchMemoryMatchesThePlans) {
  const std::string sizes =
      " --seqlen 64,2048 --batch 2 --heads 4 --kv-heads 2 --head-dim 32 --dtype bf16";
  const auto json = json_of("bench memory" + sizes);
  ASSERT_EQ(json["rows"].size(), 4u);
  const auto forwards = json_of("explain attention --lse" + sizes);
  const auto backwards = json_of("explain attention --backward" + sizes);
  for (std::size_t i = 0; i < 4; ++i) {
    const auto& row = json["rows"][i];
    const bool is_backward = i % 2 == 1;
    const std::int64_t seqlen = i < 2 ? 64 : 2048, rows = 2 * 4 * seqlen;
    const auto& plan = (is_backward ? backwards : forwards)["plans"][i / 2];
    EXPECT_EQ(row["phase"], is_backward ? "backward" : "forward");
    EXPECT_EQ(row["kernel"], plan["kernel"]);
    EXPECT_EQ(row["workspace_bytes"], plan["workspace_bytes"]);
    EXPECT_EQ(row["out_bytes"], rows * 32 * 2);
    EXPECT_EQ(row["lse_bytes"], rows * 4);
    const std::int64_t bytes = rows * (32 * 2 + 4) + plan["workspace_bytes"].get<std::int64_t>();
    EXPECT_EQ(row["bytes"], bytes);
    const std::int64_t standard = (is_backward ? 3 : 2) * rows * seqlen * 2;
    EXPECT_EQ(row["standard_bytes"], standard);
    EXPECT_DOUBLE_EQ(row["ratio"], static_cast<double>(standard) / static_cast<double>(bytes));
  }
  EXPECT_NE(json["meta"]["standard"].get<std::string>().find("by formula"), std::string::npos);
}

TEST(Program, BenchMemoryHasTheLengthsOfThePapers) {
  const auto rows = json_of("bench memory --device cpu:scalar:16")["rows"];
  ASSERT_EQ(rows.size(), 18u);
  EXPECT_EQ(rows[0]["seqlen_q"], 512);
  EXPECT_EQ(rows[17]["seqlen_q"], 131072);
  EXPECT_EQ(rows[17]["standard_bytes"], std::int64_t{3} * 8 * 131072 * 131072 * 4);
  const Result text = run_program("bench memory --seqlen 512");
  EXPECT_NE(text.out.find("standard MiB (formula)"), std::string::npos);
}

TEST(Program, BenchMemoryRejectsOverflowingSizes) {
  const Result result = run_program("bench memory --seqlen 2000000000 --heads 64 2>&1");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.out.find("pass shorter sequences"), std::string::npos);
}

TEST(Program, ColdBenchReportsPeaks) {
  const auto json =
      json_of("bench attention --cold --min-time 0 --reps 1 --seqlen-q 1 --seqlen-k 512 --heads 4");
  EXPECT_GT(json["meta"]["f32_fma_gflops"].get<double>(), 0);
  EXPECT_GT(json["meta"]["read_gbytes"].get<double>(), 0);
  EXPECT_GT(json["rows"][0]["read_gbytes"].get<double>(), 0);
  EXPECT_GT(json["rows"][0]["percent_of_read_bandwidth"].get<double>(), 0);
}

TEST(Program, CsvOnStdoutIsOnlyTheTable) {
  const Result csv =
      run_program("bench attention --no-ceilings --min-time 0 --reps 1 --seqlen 32 --format csv");
  EXPECT_EQ(csv.exit_code, 0);
  EXPECT_EQ(csv.out.rfind("dtype,batch,", 0), 0u);
  EXPECT_EQ(std::count(csv.out.begin(), csv.out.end(), '\n'), 2);
}

TEST(Program, BenchSoftmaxHasRowsForEachAlgorithmAndTheCopy) {
  const auto json = json_of("bench softmax --dtype f16 --length 7,64 --elements 5000 --reps 3");
  ASSERT_EQ(json["rows"].size(), 8u);
  EXPECT_EQ(json["rows"][0]["direction"], "copy");
  EXPECT_EQ(json["rows"][0]["percent_of_copy"], 100);
  EXPECT_EQ(json["rows"][1]["algorithm"], "safe");
  EXPECT_EQ(json["rows"][2]["algorithm"], "online");
  EXPECT_EQ(json["rows"][3]["direction"], "backward");
  EXPECT_EQ(json["rows"][3]["bytes"], 3 * 714 * 7 * 2);
  for (const auto& row : json["rows"]) EXPECT_GT(row["gbytes"], 0);
  EXPECT_EQ(run_program("bench softmax --dtype i32").exit_code, 2);
}

// For every dtype, length and axis: what a row counts, and its rates of the time that it shows.
TEST(Program, BenchSoftmaxCountsTheBytesOfItsTensors) {
  const struct {
    const char *direction, *algorithm;
    int passes, tensors;
  } kinds[] = {{"copy", "", 1, 2},
               {"forward", "safe", 3, 2},
               {"forward", "online", 2, 2},
               {"backward", "", 2, 3}};
  for (const std::string axis : {"last", "first"}) {
    const auto rows = json_of("bench softmax --dtype f32,bf16 --length 7,64 --axis " + axis +
                              " --elements 5000 --reps 3")["rows"];
    ASSERT_EQ(rows.size(), 16u);
    double copied = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto& row = rows[i];
      const auto& kind = kinds[i % 4];
      const std::int64_t length = i / 4 % 2 == 0 ? 7 : 64, num_rows = 5000 / length;
      EXPECT_EQ(row["dtype"], i < 8 ? "f32" : "bf16");
      EXPECT_EQ(row["length"], length);
      EXPECT_EQ(row["num_rows"], num_rows);
      EXPECT_EQ(row["axis"], axis);
      EXPECT_EQ(row["direction"], kind.direction);
      EXPECT_EQ(row["algorithm"], kind.algorithm);
      EXPECT_EQ(row["passes"], kind.passes);
      EXPECT_EQ(row["reps"], 3);
      EXPECT_EQ(row["bytes"], kind.tensors * num_rows * length * (i < 8 ? 4 : 2));
      const double bytes = row["bytes"], gbytes = row["gbytes"];
      EXPECT_NEAR(gbytes * row["ms_median"].get<double>() * 1e6, bytes, 1e-6 * bytes);
      if (i % 4 == 0) copied = gbytes;
      const double percent = gbytes / copied * 100;
      EXPECT_NEAR(row["percent_of_copy"].get<double>(), percent, 1e-6 * percent);
    }
  }
}

}  // namespace
