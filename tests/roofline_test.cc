// Measured ceilings and predicted times through the public API: which there are, and what is
// refused.
#include "headrace/roofline.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "support/errors.h"

namespace {

using headrace::Ceiling;
using headrace::CeilingKind;
using headrace::CeilingOptions;
using headrace::DeviceInfo;
using headrace::measure_ceilings;
using headrace::testing::error_of;

TEST(Roofline, CeilingsOfTheCpuAreCompleteAndPositive) {
  const DeviceInfo device = headrace::cpu_info();
  std::set<std::string> found;
  for (const Ceiling& c : measure_ceilings(device, {.num_rounds = 1, .round_seconds = 0})) {
    const std::string name = c.resource + ' ' + c.operation + ' ' + std::to_string(c.num_units);
    EXPECT_TRUE(found.insert(name).second) << name << " is listed twice";
    EXPECT_TRUE(std::isfinite(c.value) && c.value > 0) << name << ' ' << c.value;
    EXPECT_EQ(c.best, c.value) << name << ": of one round";
    EXPECT_GT(c.clock_hz, 1e6) << name;
    EXPECT_EQ(c.bytes > 0, c.kind != CeilingKind::compute) << name;
    EXPECT_TRUE(c.num_units == 1 || c.num_units == device.num_units) << name;
  }
  const std::string all = ' ' + std::to_string(device.num_units);
  for (const char* operation : {"read", "write", "copy"})
    for (const char* level : {"L1 ", "L2 ", "DRAM "})
      for (const std::string& units : {std::string(" 1"), all})
        EXPECT_TRUE(found.contains(std::string(level) + operation + units)) << level << operation;
  EXPECT_TRUE(found.contains("L1 load 1") && found.contains("DRAM load 1"));
#if defined(__x86_64__)
  EXPECT_TRUE(found.contains("sse2 f32 1") && found.contains("sse2 f32" + all));
#endif
}

TEST(Roofline, OptionsAreChecked) {
  const DeviceInfo device = headrace::cpu_info();
  const auto error = [&](const CeilingOptions& options) {
    return error_of([&] { measure_ceilings(device, options); }, HEADRACE_INVALID_ARGUMENT);
  };
  EXPECT_EQ(error({.num_rounds = 0}), "options.num_rounds=0: must be 1 to 1000; pass 9");
  EXPECT_EQ(error({.num_rounds = 1001}), "options.num_rounds=1001: must be 1 to 1000; pass 9");
  EXPECT_EQ(error({.round_seconds = -1}), "options.round_seconds=-1: must be 0 to 10; pass 0.02");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(error({.round_seconds = nan}).find("options.round_seconds="), 0u);
  DeviceInfo wrong = device;
  wrong.num_units = 0;
  EXPECT_EQ(error_of([&] { measure_ceilings(wrong); }, HEADRACE_INVALID_ARGUMENT)
                .find("device.num_units=0: "),
            0u);
}

TEST(Roofline, NullAndBadIndicesAreRefused) {
  const DeviceInfo device = headrace::cpu_info();
  EXPECT_EQ(headrace_ceilings_measure(&device, nullptr, nullptr), HEADRACE_INVALID_ARGUMENT);
  headrace_ceilings* list = nullptr;
  EXPECT_EQ(headrace_ceilings_measure(nullptr, nullptr, &list), HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(list, nullptr);
  EXPECT_EQ(headrace_ceilings_count(nullptr), 0);
  headrace_ceiling ceiling{};
  ceiling.struct_size = sizeof ceiling;
  EXPECT_EQ(headrace_ceilings_get(nullptr, 0, &ceiling), HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(headrace_last_error()),
            "index=0: must be 0 to below 0, the number of ceilings; pass one of them");
  headrace_ceilings_destroy(nullptr);
}

TEST(Roofline, AGpuNeedsABuildWithCuda) {
  std::int32_t count = 0;
  if (headrace_num_cuda_devices(&count) != HEADRACE_UNSUPPORTED)
    GTEST_SKIP() << "this build has CUDA";
  const std::string error = error_of(
      [] { measure_ceilings(headrace::device_from_text("sm90:132")); }, HEADRACE_UNSUPPORTED);
  EXPECT_NE(error.find("no CUDA"), std::string::npos) << error;
}

// ---- predictions

headrace_problem problem_of(std::int64_t seqlen) {
  headrace_problem p;
  headrace_problem_init(&p);
  p.dtype = HEADRACE_F32;
  p.seqlen_q = p.seqlen_k = seqlen;
  p.num_heads = p.num_kv_heads = 8;
  p.head_dim = p.head_dim_v = 64;
  return p;
}

std::vector<Ceiling> ceilings_of_two_threads() {
  return {{.kind = CeilingKind::compute,
           .num_units = 2,
           .resource = "avx2",
           .operation = "f32",
           .value = 200e9},
          {.kind = CeilingKind::bandwidth,
           .num_units = 2,
           .resource = "DRAM",
           .operation = "read",
           .value = 40e9}};
}

TEST(Predictions, AreTheSumOfTheirParts) {
  const auto plan =
      headrace::plan_attention(problem_of(1024), headrace::device_from_text("cpu:avx2:2"));
  const headrace::Prediction p = headrace::predict(plan, ceilings_of_two_threads());
  double sum = 0;
  for (const auto& part : p.parts) sum += part.constant * part.unit_seconds;
  EXPECT_GT(p.seconds, 0);
  EXPECT_DOUBLE_EQ(p.seconds, sum);
  EXPECT_EQ(p.flops, 4. * 64 * 8 * 1024 * 1024);
  EXPECT_EQ(p.exps, 8. * 1024 * 1024);
  EXPECT_EQ(p.bytes, 4. * 8 * 1024 * 64 * 4);
  EXPECT_EQ(p.num_slots, 2);
  EXPECT_EQ(p.ceilings, "measured");
  EXPECT_EQ(p.reason, "");
  EXPECT_NE(p.text.find("predicted "), std::string::npos) << p.text;
}

TEST(Predictions, WithoutCeilingsSayWhy) {
  const auto plan =
      headrace::plan_attention(problem_of(64), headrace::device_from_text("cpu:avx2:2"));
  const headrace::Prediction p = headrace::predict(plan);
  EXPECT_EQ(p.seconds, 0);
  EXPECT_TRUE(p.parts.empty());
  EXPECT_EQ(p.reason, "no ceilings of this device are known; measure them with headrace roofline");
  EXPECT_GT(p.flops, 0) << "the work is known";
}

TEST(Predictions, BadArgumentsAreRefused) {
  const auto plan =
      headrace::plan_attention(problem_of(64), headrace::device_from_text("cpu:avx2:2"));
  headrace_prediction* made = nullptr;
  EXPECT_EQ(headrace_plan_predict(plan.get(), nullptr, 0, nullptr), HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(headrace_plan_predict(nullptr, nullptr, 0, &made), HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(headrace_plan_predict(plan.get(), nullptr, 3, &made), HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(headrace_plan_predict(plan.get(), nullptr, -1, &made), HEADRACE_INVALID_ARGUMENT);
  const auto error = [&](const Ceiling& ceiling) {
    return error_of([&] { headrace::predict(plan, {ceiling}); }, HEADRACE_INVALID_ARGUMENT);
  };
  const Ceiling good = ceilings_of_two_threads()[0];
  Ceiling bad = good;
  bad.value = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(error(bad).find("ceilings[0]: "), 0u);
  bad = good;
  bad.kind = static_cast<CeilingKind>(7);
  EXPECT_EQ(error(bad).find("ceilings[0]: kind=7"), 0u);
  bad = good;
  bad.num_units = 0;
  EXPECT_EQ(error(bad).find("ceilings[0]: "), 0u);
  ASSERT_EQ(headrace_plan_predict(plan.get(), nullptr, 0, &made), HEADRACE_OK);
  headrace_prediction_part part{};
  part.struct_size = sizeof part;
  EXPECT_EQ(headrace_prediction_get_part(made, 0, &part), HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(headrace_prediction_get(nullptr, nullptr), HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(headrace_prediction_get(made, nullptr), HEADRACE_INVALID_ARGUMENT);
  headrace_prediction_destroy(made);
  headrace_prediction_destroy(nullptr);
}

}  // namespace
