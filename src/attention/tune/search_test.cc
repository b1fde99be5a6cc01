// The search, on times that the test makes up.
#include "attention/tune/search.h"

#include <gtest/gtest.h>

#include <map>

#include "attention/predict/prediction.h"
#include "attention/select.h"
#include "attention/validate.h"
#include "core/device.h"

namespace headrace::tune {
namespace {

const std::vector<probes::Ceiling>& ceilings() {
  static const std::vector<probes::Ceiling> list = {{.kind = probes::CeilingKind::compute,
                                                     .resource = "avx2",
                                                     .operation = "f32",
                                                     .num_units = 8,
                                                     .value = 800e9},
                                                    {.kind = probes::CeilingKind::bandwidth,
                                                     .resource = "DRAM",
                                                     .operation = "read",
                                                     .num_units = 8,
                                                     .value = 40e9}};
  return list;
}

// Many choices of tile and threads.
Plan plan_of_prefill() {
  Problem p = default_problem();
  p.seqlen_q = p.seqlen_k = 2048;
  p.num_heads = p.num_kv_heads = 8;
  p.head_dim = p.head_dim_v = 64;
  const DeviceInfo device = device_from_text("cpu:avx2:8").value();
  return plan_attention(p, device, kernels_of(HEADRACE_CPU, HEADRACE_FORWARD)).value();
}

double predicted(const Plan& plan, const TuningConfig& config) {
  Plan other = plan;
  EXPECT_FALSE(choose_config(config, other));
  return predict::predict(other, ceilings()).seconds;
}

// Calls that each choice was timed in.
struct Counted {
  std::map<std::string, int> calls;
  Measure measure(std::function<double(const TuningConfig&, int call)> seconds) {
    return [this, seconds](const Plan& plan) -> Result<double> {
      return seconds(plan.config, calls[config_text(plan.config)]++);
    };
  }
};

#if defined(__x86_64__)  // no other CPU kernels have a model
TEST(TuneSearch, TimesWhatIsNotPredictedToBeSlow) {
  const Plan plan = plan_of_prefill();
  std::vector<TuningConfig> all = configs_of(*plan.kernel, plan.problem, plan.device);
  all.insert(all.begin(), TuningConfig{});
  double best = predicted(plan, {});
  for (const TuningConfig& config : all) best = std::min(best, predicted(plan, config));
  Counted counted;
  const auto measure = counted.measure([](const TuningConfig&, int) { return 1e-3; });
  const Found found = search(plan, {.num_rounds = 4, .ceilings = ceilings()}, measure).value();
  EXPECT_EQ(found.num_configs, static_cast<int>(all.size()));
  int num_fast = 0;
  for (const TuningConfig& config : all) {
    const bool is_fast = predicted(plan, config) <= kMostPredictedRatio * best;
    EXPECT_EQ(counted.calls[config_text(config)] > 0, is_fast || config == TuningConfig{})
        << config_text(config);
    num_fast += is_fast;
  }
  EXPECT_EQ(found.num_timed, num_fast);
  EXPECT_EQ(counted.calls["num_threads=1"], 0) << "eight threads take an eighth of the time";
  EXPECT_GT(num_fast, 3);
  // Without ceilings nothing is predicted, and all are timed.
  Counted without;
  const auto measure_all = without.measure([](const TuningConfig&, int) { return 1e-3; });
  EXPECT_EQ(search(plan, {.num_rounds = 1, .ceilings = {}}, measure_all).value().num_timed,
            static_cast<int>(all.size()));
}
#endif

TEST(TuneSearch, FindsTheFastestChoice) {
  const Plan plan = plan_of_prefill();
  for (const TuningConfig& fast : configs_of(*plan.kernel, plan.problem, plan.device)) {
    Counted counted;
    const auto measure = counted.measure([&](const TuningConfig& config, int) {
      return config == fast ? 0.9e-3 : config == TuningConfig{} ? 1e-3 : 1.1e-3;
    });
    const TunedCall call = search(plan, {.num_rounds = 9, .ceilings = {}}, measure).value().call;
    EXPECT_EQ(call.config, fast);
    EXPECT_DOUBLE_EQ(call.seconds, 0.9e-3);
    EXPECT_DOUBLE_EQ(call.own_seconds, 1e-3);
    EXPECT_NEAR(call.gain(), 1 / 0.9 - 1, 1e-12);
  }
}

TEST(TuneSearch, KeepsTheKernelsOwnChoicesIfOthersAreHardlyFaster) {
  const Plan plan = plan_of_prefill();
  Counted counted;
  const auto measure = counted.measure(
      [](const TuningConfig& config, int) { return config == TuningConfig{} ? 1e-3 : 0.995e-3; });
  const TunedCall call = search(plan, {.num_rounds = 9, .ceilings = {}}, measure).value().call;
  EXPECT_EQ(call.config, TuningConfig{});
  EXPECT_EQ(call.seconds, call.own_seconds);
}

// A choice that was lucky in the sweeps loses the rounds that decide, and the next one wins them.
TEST(TuneSearch, IsNotMisledByLuck) {
  const Plan plan = plan_of_prefill();
  const auto configs = configs_of(*plan.kernel, plan.problem, plan.device);
  const TuningConfig lucky = configs[0], fast = configs[1];
  Counted counted;
  const auto measure = counted.measure([&](const TuningConfig& config, int call) {
    constexpr int kSweeps = 4;
    if (config == lucky) return call < kSweeps ? 0.5e-3 : 1e-3;
    if (config == fast) return 0.52e-3;
    return 1e-3;
  });
  EXPECT_EQ(search(plan, {.num_rounds = 9, .ceilings = {}}, measure).value().call.config, fast);
}

// A median may be lower by chance: most rounds must agree.
TEST(TuneSearch, NeedsThreeRoundsOfFour) {
  const Plan plan = plan_of_prefill();
  const auto configs = configs_of(*plan.kernel, plan.problem, plan.device);
  Counted counted;
  const auto measure = counted.measure([&](const TuningConfig& config, int call) {
    if (config == TuningConfig{}) return 1e-3;
    if (config != configs[0]) return 3e-3;
    return call % 5 < 3 ? 0.8e-3 : 1.2e-3;
  });
  EXPECT_EQ(search(plan, {.num_rounds = 15, .ceilings = {}}, measure).value().call.config,
            TuningConfig{});
}

TEST(TuneSearch, ReturnsTheFailureOfACall) {
  int left = 7;
  const Measure measure = [&](const Plan&) -> Result<double> {
    if (--left == 0) return Failure{ErrorCode::device_error, "the device failed"};
    return 1e-3;
  };
  Result<Found> found = search(plan_of_prefill(), {}, measure);
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.failure().message, "the device failed");
  EXPECT_EQ(left, 0) << "nothing runs after it";
}

TEST(TuneSearch, AKernelWithoutChoicesKeepsItsOwn) {
  Problem p = default_problem();
  p.dtype = HEADRACE_F64;
  const DeviceInfo device = device_from_text("cpu:avx2:8").value();
  const Plan plan = plan_attention(p, device, kernels_of(HEADRACE_CPU, HEADRACE_FORWARD)).value();
  ASSERT_EQ(plan.kernel->configs, nullptr);
  const Measure measure = [](const Plan&) -> Result<double> { return 2e-3; };
  const Found found = search(plan, {}, measure).value();
  EXPECT_EQ(found.call.config, TuningConfig{});
  EXPECT_EQ(found.call.seconds, 2e-3);
  EXPECT_EQ(found.num_configs, 1);
  EXPECT_EQ(found.num_timed, 1);
}

}  // namespace
}  // namespace headrace::tune
