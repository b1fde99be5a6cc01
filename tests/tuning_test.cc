// Tuned choices through the public API: a call is tuned, later plans take what was found, and the
// bits stay the same.
#include "headrace/tuning.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/errors.h"

namespace {

using headrace::AttentionGradients;
using headrace::AttentionTensors;
using headrace::DeviceInfo;
using headrace::DType;
using headrace::Error;
using headrace::Plan;
using headrace::Problem;
using headrace::TensorView;
using headrace::TunedCall;
using headrace::TuneOptions;
using headrace::Tuning;
using headrace::testing::error_of;

constexpr std::int64_t kQueries = 192, kKeys = 150, kHeads = 4, kKvHeads = 2, kDim = 32;

// A call of its own memory. Every array has room for the largest operand.
struct Call {
  explicit Call(std::int64_t queries) : num_queries(queries) {
    for (std::size_t i = 0; i < q.size(); ++i) {
      const auto x = static_cast<float>(i);
      q[i] = std::sin(x);
      k[i] = std::cos(0.7f * x);
      v[i] = std::sin(0.3f * x);
      dout[i] = std::cos(x);
    }
  }
  AttentionTensors tensors() {
    return {.q = view(q, num_queries, kHeads),
            .k = view(k, kKeys, kKvHeads),
            .v = view(v, kKeys, kKvHeads),
            .out = view(out, num_queries, kHeads),
            .lse = TensorView(lse.data(), DType::f32, {1, kHeads, num_queries})};
  }
  AttentionGradients gradients() {
    return {.dout = view(dout, num_queries, kHeads),
            .dq = view(dq, num_queries, kHeads),
            .dk = view(dk, kKeys, kKvHeads),
            .dv = view(dv, kKeys, kKvHeads)};
  }
  void run(const Plan& plan) {
    std::vector<char> workspace(plan.workspace_bytes());
    plan.run(tensors(), {workspace.data(), workspace.size()});
  }
  void run_backward(const Plan& plan) {
    std::vector<char> workspace(plan.workspace_bytes());
    plan.run_backward(tensors(), gradients(), {workspace.data(), workspace.size()});
  }

  std::int64_t num_queries;
  std::vector<float> q = array(), k = array(), v = array(), out = array(), lse = array(),
                     dout = array(), dq = array(), dk = array(), dv = array();

 private:
  static std::vector<float> array() {
    return std::vector<float>(static_cast<std::size_t>(kQueries * kHeads * kDim));
  }
  static TensorView view(std::vector<float>& x, std::int64_t seqlen, std::int64_t heads) {
    return TensorView(x.data(), DType::f32, {1, seqlen, heads, kDim});
  }
};

bool has_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0;
}

// Two threads, whatever the machine.
DeviceInfo device() {
  DeviceInfo cpu = headrace::cpu_info();
  cpu.num_units = 2;
  return cpu;
}

const TuneOptions kQuick{.num_rounds = 3, .round_seconds = 0};

// The text of a table in which the call has another choice.
std::string text_with(const std::string& text, const std::string& config) {
  const std::size_t begin = text.find(':', text.find("\ncpu_")) + 1, end = text.find(':', begin);
  std::string other = text;
  return other.replace(begin, end - begin, config);
}

TEST(Tuning, BitsAreEqualWithEveryChoice) {
  for (const std::int64_t queries : {std::int64_t{1}, kQueries}) {
    headrace::forget_tuning();
    Call call(queries);
    const Plan own = plan_attention(Problem(call.tensors()), device());
    std::fill(call.out.begin(), call.out.end(), 7.f);
    call.run(own);
    const std::vector<float> out = call.out, lse = call.lse;
    Tuning tuning(device());
    const TunedCall tuned = tuning.tune(own, call.tensors(), kQuick);
    EXPECT_TRUE(has_same_bits(call.out, out) && has_same_bits(call.lse, lse)) << "while tuning";
    EXPECT_EQ(tuned.kernel, own.kernel());
    EXPECT_GT(tuned.seconds, 0);
    EXPECT_GE(tuned.own_seconds, tuned.seconds);
    EXPECT_GT(tuned.num_configs, 1);
    EXPECT_EQ(tuned.num_timed, tuned.num_configs) << "without ceilings";
    int num_taken = 0;
    for (const char* config : {"num_threads=1", "tile_m=192", "num_threads=1 tile_m=96",
                               "heads_per_task=1", "heads_per_task=2"}) {
      Tuning(device(), text_with(tuning.text(), config), "made up").use();
      const Plan plan = plan_attention(Problem(call.tensors()), device());
      const std::string text = plan.explain();
      num_taken += text.find(std::string("tuning    ") + config + ": ") != text.npos;
      std::fill(call.out.begin(), call.out.end(), 7.f);
      call.run(plan);
      EXPECT_TRUE(has_same_bits(call.out, out) && has_same_bits(call.lse, lse)) << config;
    }
    EXPECT_GE(num_taken, 2);
  }
  headrace::forget_tuning();
}

TEST(Tuning, BitsOfGradientsAreEqualWithEveryChoice) {
  Call call(kQueries);
  call.run(plan_attention(Problem(call.tensors()), device()));
  const Plan own = plan_attention(Problem(call.tensors(), call.gradients()), device());
  for (auto* x : {&call.dq, &call.dk, &call.dv}) std::fill(x->begin(), x->end(), 7.f);
  call.run_backward(own);
  const std::vector<float> dq = call.dq, dk = call.dk, dv = call.dv;
  Tuning tuning(device());
  EXPECT_GT(tuning.tune(own, call.tensors(), call.gradients(), kQuick).num_configs, 1);
  const auto is_same = [&] {
    return has_same_bits(call.dq, dq) && has_same_bits(call.dk, dk) && has_same_bits(call.dv, dv);
  };
  EXPECT_TRUE(is_same()) << "while tuning";
  int num_taken = 0;
  for (const char* config : {"num_threads=1", "backward_tasks=1", "backward_tasks=2",
                             "num_threads=1 backward_tasks=2"}) {
    Tuning(device(), text_with(tuning.text(), config), "made up").use();
    const Plan plan = plan_attention(Problem(call.tensors(), call.gradients()), device());
    const std::string text = plan.explain();
    num_taken += text.find(std::string("tuning    ") + config + ": ") != text.npos;
    for (auto* x : {&call.dq, &call.dk, &call.dv}) std::fill(x->begin(), x->end(), 7.f);
    call.run_backward(plan);
    EXPECT_TRUE(is_same()) << config;
  }
  EXPECT_GE(num_taken, 3);
  headrace::forget_tuning();
}

TEST(Tuning, ATextReturnsAsTheSameTable) {
  Call call(kQueries);
  const Plan plan = plan_attention(Problem(call.tensors()), device());
  Tuning tuning(device());
  EXPECT_TRUE(tuning.calls().empty());
  const TunedCall tuned = tuning.tune(plan, call.tensors(), kQuick);
  const Tuning read(device(), tuning.text(), "a file");
  ASSERT_EQ(read.calls().size(), 1u);
  EXPECT_EQ(read.calls()[0].kernel, tuned.kernel);
  EXPECT_EQ(read.calls()[0].call,
            "seqlen_q=192 seqlen_k=150 num_heads=4 num_kv_heads=2 head_dim=32 head_dim_v=32 "
            "has_lse=1");
  EXPECT_EQ(read.calls()[0].call, tuned.call);
  EXPECT_EQ(read.calls()[0].config, tuned.config);
  EXPECT_NEAR(read.calls()[0].seconds / tuned.seconds, 1, 1e-5);
  EXPECT_EQ(read.text(), tuning.text());
}

TEST(Tuning, ForeignAndDamagedTextsAreRefusedWithAReason) {
  Call call(kQueries);
  const Plan plan = plan_attention(Problem(call.tensors()), device());
  Tuning tuning(device());
  tuning.tune(plan, call.tensors(), kQuick);
  const std::string good = tuning.text();
  const auto reason = [](const DeviceInfo& of, const std::string& text) {
    return error_of([&] { Tuning(of, text, "file.txt"); }, HEADRACE_INVALID_ARGUMENT);
  };
  EXPECT_EQ(reason(device(), ""),
            "file.txt: its first line is not \"headrace-tuning 1\"; tune again");
  EXPECT_EQ(reason(device(), good.substr(0, good.size() / 2)).find("file.txt: "), 0u);
  EXPECT_EQ(reason(device(), good.substr(0, good.size() - 1)),
            "file.txt: its end is missing; tune again");
  DeviceInfo other = device();
  other.num_units = 3;
  EXPECT_EQ(reason(other, good).find("file.txt: it is not of this device, ["), 0u);
  std::string version = good;
  version.replace(version.find("version "), 9, "version 9");
  EXPECT_EQ(reason(device(), version).find("file.txt: it is not of this Headrace, version "), 0u);
}

TEST(Tuning, OptionsAndArgumentsAreChecked) {
  Call call(kQueries);
  const Plan plan = plan_attention(Problem(call.tensors()), device());
  Tuning tuning(device());
  const auto error = [&](const TuneOptions& options) {
    return error_of([&] { tuning.tune(plan, call.tensors(), options); }, HEADRACE_INVALID_ARGUMENT);
  };
  EXPECT_EQ(error({.num_rounds = 0}), "tune_options.num_rounds=0: must be 1 to 1000; pass 15");
  EXPECT_EQ(error({.round_seconds = -1}),
            "tune_options.round_seconds=-1: must be 0 to 10; pass 0.01");
  EXPECT_EQ(error({.round_seconds = std::nan("")}).find("tune_options.round_seconds="), 0u);
  int num_before = 0;
  TuneOptions throwing{.before_call = [&](void*) {
    if (++num_before == 3) throw std::runtime_error("mine");
  }};
  EXPECT_NE(error(throwing).find("tune_options.before_call: threw \"mine\""), std::string::npos);
  EXPECT_EQ(num_before, 3);
  EXPECT_TRUE(tuning.calls().empty()) << "a failure adds nothing";
  // Tensors of another shape, gradients of a forward, a table of another device.
  Call other(1);
  EXPECT_NE(error_of([&] { tuning.tune(plan, other.tensors(), kQuick); }, HEADRACE_INVALID_ARGUMENT)
                .find("the plan was made for seqlen_q=192"),
            std::string::npos);
  EXPECT_NE(error_of([&] { tuning.tune(plan, call.tensors(), call.gradients(), kQuick); },
                     HEADRACE_INVALID_ARGUMENT)
                .find("plan: it was made for phase=0"),
            std::string::npos);
  DeviceInfo three = device();
  three.num_units = 3;
  Tuning of_three(three);
  EXPECT_EQ(
      error_of([&] { of_three.tune(plan, call.tensors(), kQuick); }, HEADRACE_INVALID_ARGUMENT)
          .find("tuning: is of another device than the plan, "),
      0u);
}

TEST(Tuning, NullAndBadIndicesAreRefused) {
  const headrace_device_info d = device();
  headrace_tuning* tuning = nullptr;
  EXPECT_EQ(headrace_tuning_create(&d, nullptr), HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(headrace_tuning_create(nullptr, &tuning), HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(headrace_tuning_parse(&d, nullptr, 0, nullptr, &tuning), HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(headrace_tuning_parse(&d, "x", 1, nullptr, &tuning), HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(headrace_last_error()).find("a table of the program: "), 0u);
  EXPECT_EQ(tuning, nullptr);
  EXPECT_STREQ(headrace_tuning_text(nullptr), "");
  EXPECT_EQ(headrace_tuning_count(nullptr), 0);
  headrace_tuned_call call{};
  call.struct_size = sizeof call;
  EXPECT_EQ(headrace_tuning_get(nullptr, 0, &call), HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(headrace_last_error()),
            "index=0: must be 0 to below 0, the number of calls; pass one of them");
  EXPECT_EQ(
      headrace_plan_tune(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr),
      HEADRACE_INVALID_ARGUMENT);
  headrace_tuning_destroy(nullptr);
}

// The evicting function of a caller runs before every call, also where a call is not counted.
TEST(Tuning, BeforeCallRunsBeforeEveryCall) {
  Call call(1);
  const Plan plan = plan_attention(Problem(call.tensors()), device());
  Tuning tuning(device());
  int num_before = 0;
  const TunedCall tuned = tuning.tune(
      plan, call.tensors(), {.num_rounds = 1, .round_seconds = 0, .before_call = [&](void* stream) {
                               EXPECT_EQ(stream, nullptr);
                               ++num_before;
                             }});
  EXPECT_GE(num_before, tuned.num_configs);
}

}  // namespace
