// The table of the operators of a step, and bench model --by-operator, which prints it.
#include "operator_times.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "headrace/step.hpp"
#include "tests/support/ceilings.h"
#include "tests/support/program_json.h"

namespace headrace::cli {
namespace {

using headrace::testing::json_of;
using headrace::testing::run_program;

const std::string kModel = HEADRACE_GOLDEN_DIR "/tiny/tiny_llama3_f16.gguf";

double number(const Cell& cell) { return std::get<double>(cell); }

// 100 GB/s and 1 TFLOP/s in f32, 2 in bf16 (tests/support/ceilings.h).
TEST(OperatorTimes, BoundsAreThoseOfBytesOrOfAttention) {
  const std::vector<Ceiling> ceilings = round_ceilings().ceilings;
  DeviceInfo cpu = cpu_info(), gpu = cpu_info();
  gpu.device_type = HEADRACE_CUDA;
  const auto bound = [&](const char* name, const char* kernel, double flops,
                         const DeviceInfo& device) {
    return bound_seconds({.name = name, .kernel = kernel, .bytes = 1e8, .flops = flops}, device,
                         ceilings);
  };
  EXPECT_DOUBLE_EQ(bound("swiglu", "cpu_avx2_swiglu", 0, cpu), 1e-3);
  EXPECT_DOUBLE_EQ(bound("linear qkv", "cpu_avx2_gemm", 1e12, cpu), 1e-3);
  EXPECT_DOUBLE_EQ(bound("attention", "cpu_avx2_fwd", 1e8, cpu), 1e-3);
  EXPECT_DOUBLE_EQ(bound("attention", "cpu_avx2_fwd", 1e12, cpu), 1);
  EXPECT_DOUBLE_EQ(bound("attention", "cpu_avx512bf16_fwd", 1e12, cpu), 0.5);
  // A GPU's tensor cores have no ceiling here.
  EXPECT_DOUBLE_EQ(bound("linear qkv", "cuda_sm90_gemm_stream", 1e12, gpu), 1e-3);
  auto with_cores = ceilings;
  with_cores.push_back(ceilings[0]);
  with_cores.back().resource = "tensor core";
  with_cores.back().operation = "bf16";
  with_cores.back().value = 1e14;
  EXPECT_DOUBLE_EQ(bound_seconds({.name = "linear qkv", .kernel = "k", .bytes = 1e8, .flops = 1e12},
                                 gpu, with_cores),
                   1e-2);
  EXPECT_EQ(bound_seconds({.name = "swiglu", .kernel = "k", .bytes = 1e8}, cpu, {}), 0);
}

TEST(OperatorTimes, TheRestIsWhatNoOperatorAccountsFor) {
  Table table = operator_times_table();
  const StepTimes times{
      .operators = {{.name = "a", .kernel = "k", .num_calls = 2, .bytes = 1e8, .seconds = 2e-3},
                    {.name = "b", .kernel = "l", .num_calls = 3, .bytes = 2e8, .seconds = 5e-3}},
      .seconds = 1e-2};
  add_operator_times("tg4", times, cpu_info(), round_ceilings().ceilings, table);
  ASSERT_EQ(table.rows.size(), 4u);
  const std::vector<std::vector<double>> expected = {{1e8, 2000, 20, 1000, 50},
                                                     {2e8, 5000, 50, 2000, 40},
                                                     {0, 3000, 30},
                                                     {3e8, 10000, 100, 3000, 30}};
  const char* names[] = {"a", "b", "rest", "step"};
  const std::int64_t num_calls[] = {2, 3, 0, 5};
  for (std::size_t i = 0; i < 4; ++i) {
    SCOPED_TRACE(names[i]);
    const std::vector<Cell>& row = table.rows[i];
    ASSERT_EQ(row.size(), table.columns.size());
    EXPECT_EQ(row[0], Cell(std::string("tg4")));
    EXPECT_EQ(row[1], Cell(std::string(names[i])));
    EXPECT_EQ(row[2], Cell(num_calls[i]));
    for (std::size_t j = 0; j < 5; ++j) {
      if (j < expected[i].size())
        EXPECT_NEAR(number(row[4 + j]), expected[i][j], 1e-9 * expected[i][j]) << j;
      else
        EXPECT_EQ(row[4 + j], Cell()) << "no bound";
    }
  }
  // Without ceilings, and of an operator that takes no time.
  Table other = operator_times_table();
  add_operator_times("t", {.operators = {{.name = "a", .kernel = "k", .bytes = 1}}, .seconds = 1},
                     cpu_info(), {}, other);
  EXPECT_EQ(other.rows[0][7], Cell());
  EXPECT_EQ(other.rows[0][8], Cell());
}

// Beside the library's own counts: a prompt's step has all of its tokens, an answer's one.
TEST(OperatorTimes, BenchModelTimesTheStepsOfItsTests) {
  ceilings_folder();
  const auto json =
      json_of("bench model --by-operator -p 6 -n 3 -d 9 -r 1 --no-ceilings -m " + kModel);
  EXPECT_EQ(json["meta"]["bounds"], "from measured ceilings");
  const ModelFile file(kModel);
  std::size_t row = 0;
  for (const auto& [test, num_tokens] : {std::pair{"pp6", 6}, std::pair{"tg3", 1}}) {
    SCOPED_TRACE(test);
    double sum = 0;
    for (const OperatorCost& cost :
         explain_step(file, {.seqlen_q = num_tokens, .seqlen_k = 9 + num_tokens}, cpu_info())) {
      const auto& shown = json["operators"][row++];
      EXPECT_EQ(shown["test"], test);
      EXPECT_EQ(shown["operator"], cost.name);
      EXPECT_EQ(shown["calls"], cost.num_calls);
      EXPECT_EQ(shown["kernel"], cost.kernel);
      EXPECT_EQ(shown["bytes"], cost.bytes) << cost.name;
      EXPECT_GE(shown["microseconds"], 0);
      EXPECT_GT(shown["bound_microseconds"], 0);
      sum += shown["microseconds"].get<double>();
    }
    const auto &rest = json["operators"][row++], &step = json["operators"][row++];
    EXPECT_EQ(rest["operator"], "rest");
    EXPECT_EQ(step["operator"], "step");
    const double microseconds = step["microseconds"];
    EXPECT_GT(microseconds, 0);
    EXPECT_NEAR(rest["microseconds"].get<double>(), microseconds - sum, 1e-6 * microseconds);
  }
  EXPECT_EQ(row, json["operators"].size());
  EXPECT_FALSE(
      json_of("bench model -p 4 -n 0 -r 1 --no-ceilings -m " + kModel).contains("operators"));
}

TEST(OperatorTimes, BenchModelSaysWhereBoundsComeFrom) {
  const testing::TemporaryFolder empty;
  setenv("XDG_CACHE_HOME", empty.file("").c_str(), 1);
  const auto json = json_of("bench model --by-operator -p 0 -n 2 -r 1 --no-ceilings -m " + kModel);
  setenv("XDG_CACHE_HOME", ceilings_folder().file("").c_str(), 1);
  EXPECT_EQ(json["meta"]["bounds"], "none: headrace roofline --device cpu measures the ceilings");
  EXPECT_TRUE(json["operators"][0]["bound_microseconds"].is_null());
}

}  // namespace
}  // namespace headrace::cli
