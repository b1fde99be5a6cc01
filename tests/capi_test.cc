// The C ABI from a program's view: statuses and messages, null pointers, structs of other versions,
// plans shared by threads.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "headrace/headrace.h"
#include "headrace/tensor.hpp"

namespace {

using headrace::DType;
using headrace::TensorView;

struct Call {
  std::vector<float> q = std::vector<float>(2 * 5 * 4 * 8), k = q, v = q, out = q;
  headrace_attention_tensors tensors;
  headrace_attention_options options;

  Call() {
    for (std::size_t i = 0; i < q.size(); ++i) {
      q[i] = static_cast<float>(std::sin(0.37 * static_cast<double>(i)));
      k[i] = static_cast<float>(std::cos(0.23 * static_cast<double>(i)));
      v[i] = static_cast<float>(i % 17);
    }
    headrace_attention_tensors_init(&tensors);
    headrace_attention_options_init(&options);
    tensors.q = TensorView(q.data(), DType::f32, {2, 5, 4, 8});
    tensors.k = TensorView(k.data(), DType::f32, {2, 5, 4, 8});
    tensors.v = TensorView(v.data(), DType::f32, {2, 5, 4, 8});
    tensors.out = TensorView(out.data(), DType::f32, {2, 5, 4, 8});
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  headrace_status forward() {
    return headrace_attention_forward(&tensors, &options, nullptr, 0, nullptr);
  }
  headrace_problem problem() {
    headrace_problem p;
    headrace_problem_init(&p);
    EXPECT_EQ(headrace_attention_problem(&tensors, &options, &p), HEADRACE_OK)
        << headrace_last_error();
    return p;
  }
};

headrace_device_info this_cpu() {
  headrace_device_info device{};
  device.struct_size = sizeof device;
  EXPECT_EQ(headrace_cpu_info(&device), HEADRACE_OK) << headrace_last_error();
  return device;
}

bool error_has(const char* part) {
  const std::string text = headrace_last_error();
  if (text.find(part) != std::string::npos) return true;
  ADD_FAILURE() << "no \"" << part << "\" in: " << text;
  return false;
}

TEST(Capi, NullPointersAreErrors) {
  Call call;
  headrace_problem p = call.problem();
  headrace_device_info d = this_cpu();
  headrace_plan* plan = nullptr;
  const auto expect = [](headrace_status status, const char* argument) {
    EXPECT_EQ(status, HEADRACE_INVALID_ARGUMENT);
    EXPECT_TRUE(error_has(argument));
    EXPECT_TRUE(error_has("=NULL"));
  };
  expect(headrace_cpu_info(nullptr), "device");
  expect(headrace_device_from_text(nullptr, &d), "text");
  expect(headrace_device_from_text("cpu", nullptr), "device");
  expect(headrace_attention_problem(nullptr, nullptr, &p), "tensors");
  expect(headrace_attention_problem(&call.tensors, nullptr, nullptr), "problem");
  expect(headrace_plan_attention(nullptr, &d, &plan), "problem");
  expect(headrace_plan_attention(&p, nullptr, &plan), "device");
  expect(headrace_plan_attention(&p, &d, nullptr), "plan");
  expect(headrace_plan_run(nullptr, &call.tensors, nullptr, nullptr, 0, nullptr), "plan");
  expect(headrace_attention_supports(nullptr, &d), "problem");
  expect(headrace_attention_supports(&p, nullptr), "device");
  expect(headrace_attention_forward(nullptr, nullptr, nullptr, 0, nullptr), "tensors");
  EXPECT_EQ(headrace_kernel_refusal(nullptr, &d, 0), nullptr);
  EXPECT_EQ(headrace_kernel_refusal(&p, nullptr, 0), nullptr);
  EXPECT_EQ(plan, nullptr);
  headrace_plan_destroy(nullptr);
  EXPECT_EQ(headrace_plan_workspace_bytes(nullptr), 0u);
  EXPECT_EQ(headrace_plan_is_fallback(nullptr), 0);
  EXPECT_STREQ(headrace_plan_kernel(nullptr), "");
  EXPECT_STREQ(headrace_plan_explain(nullptr), "");
}

TEST(Capi, PlanAndForwardAgree) {
  Call call;
  ASSERT_EQ(call.forward(), HEADRACE_OK) << headrace_last_error();
  const std::vector<float> expected = call.out;
  std::fill(call.out.begin(), call.out.end(), -7.0f);
  const headrace_problem p = call.problem();
  const headrace_device_info d = this_cpu();
  headrace_plan* plan = nullptr;
  ASSERT_EQ(headrace_plan_attention(&p, &d, &plan), HEADRACE_OK) << headrace_last_error();
  // The workspace may have any alignment.
  std::vector<char> memory(headrace_plan_workspace_bytes(plan) + 1);
  ASSERT_EQ(headrace_plan_run(plan, &call.tensors, nullptr, memory.data() + 1, memory.size() - 1,
                              nullptr),
            HEADRACE_OK)
      << headrace_last_error();
  EXPECT_EQ(call.out, expected);
  headrace_plan_destroy(plan);
}

TEST(Capi, AFailedCallDoesNotWriteOutputs) {
  Call call;
  std::fill(call.out.begin(), call.out.end(), -7.0f);
  call.options.dropout_p = 2;
  EXPECT_EQ(call.forward(), HEADRACE_INVALID_ARGUMENT);
  EXPECT_TRUE(error_has("dropout_p=2"));
  const headrace_problem p = [] {
    Call other;
    return other.problem();
  }();
  const headrace_device_info d = this_cpu();
  headrace_plan* plan = nullptr;
  ASSERT_EQ(headrace_plan_attention(&p, &d, &plan), HEADRACE_OK);
  std::vector<char> memory(headrace_plan_workspace_bytes(plan));
  const auto run = [&](std::size_t bytes) {
    return headrace_plan_run(plan, &call.tensors, nullptr, memory.data(), bytes, nullptr);
  };
  if (!memory.empty()) {
    EXPECT_EQ(run(memory.size() - 1), HEADRACE_INVALID_ARGUMENT);
    EXPECT_TRUE(error_has(("at least " + std::to_string(memory.size()) + " bytes").c_str()));
  }
  std::vector<float> lse(2 * 4 * 5);
  call.tensors.lse = TensorView(lse.data(), DType::f32, {2, 4, 5});
  EXPECT_EQ(run(memory.size()), HEADRACE_INVALID_ARGUMENT);
  EXPECT_TRUE(error_has("has_lse=1 but the plan was made for has_lse=0"));
  call.tensors.lse = {};
  call.tensors.q.shape[1] = call.tensors.out.shape[1] = 3;
  EXPECT_EQ(run(memory.size()), HEADRACE_INVALID_ARGUMENT);
  EXPECT_TRUE(error_has("seqlen_q=3 but the plan was made for seqlen_q=5"));
  headrace_plan_destroy(plan);
  for (const float x : call.out) EXPECT_EQ(x, -7.0f);
}

// An older caller knows fewer fields, a newer one more.
TEST(Capi, StructsOfOtherVersions) {
  Call call;
  ASSERT_EQ(call.forward(), HEADRACE_OK) << headrace_last_error();
  const std::vector<float> expected = call.out;
  std::memset(&call.options.softcap, 0xEE, sizeof call.options - 2 * sizeof(double));
  call.options.struct_size = offsetof(headrace_attention_options, softcap);
  std::memset(&call.tensors.lse, 0xEE,
              sizeof call.tensors - offsetof(headrace_attention_tensors, lse));
  call.tensors.struct_size = offsetof(headrace_attention_tensors, lse);
  ASSERT_EQ(call.forward(), HEADRACE_OK) << headrace_last_error();
  EXPECT_EQ(call.out, expected);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{8}, std::size_t{20}, SIZE_MAX}) {
    call.options.struct_size = bytes;
    EXPECT_EQ(call.forward(), HEADRACE_INVALID_ARGUMENT);
    EXPECT_TRUE(error_has(("options.struct_size=" + std::to_string(bytes)).c_str()));
    EXPECT_TRUE(error_has("init function"));
  }
  headrace_attention_options_init(&call.options);
  call.tensors.struct_size = 16;
  EXPECT_EQ(call.forward(), HEADRACE_INVALID_ARGUMENT);
  EXPECT_TRUE(error_has("tensors.struct_size=16"));
  call.tensors.struct_size = offsetof(headrace_attention_tensors, lse);
  struct Newer {
    headrace_attention_options options;
    std::int64_t more;
  } newer{call.options, 0};
  newer.options.struct_size = sizeof newer;
  EXPECT_EQ(headrace_attention_forward(&call.tensors, &newer.options, nullptr, 0, nullptr),
            HEADRACE_OK);
  newer.more = 1;
  EXPECT_EQ(headrace_attention_forward(&call.tensors, &newer.options, nullptr, 0, nullptr),
            HEADRACE_UNSUPPORTED);
  EXPECT_TRUE(error_has("load a newer library"));
}

TEST(Capi, ErrorsBelongToTheirThread) {
  EXPECT_NE(headrace_device_from_text("toaster", nullptr), HEADRACE_OK);
  std::string other = "unset";
  std::thread([&] { other = headrace_last_error(); }).join();
  EXPECT_EQ(other, "");
  EXPECT_STRNE(headrace_last_error(), "");
}

// With or without CUDA kernels and devices: no crash, and a message for every error.
TEST(Capi, CudaDeviceInfoOrAnErrorWithTheReason) {
  headrace_device_info device = this_cpu();
  std::int32_t count = -1;
  if (headrace_num_cuda_devices(&count) != HEADRACE_OK) {
    EXPECT_STRNE(headrace_last_error(), "");
    count = 0;
  }
  for (std::int32_t i = 0; i < count; ++i) {
    ASSERT_EQ(headrace_cuda_info(i, &device), HEADRACE_OK) << headrace_last_error();
    EXPECT_EQ(device.device_type, HEADRACE_CUDA);
    EXPECT_EQ(device.device_id, i);
    EXPECT_GE(device.sm, 50);
    EXPECT_GT(device.num_units, 0);
    EXPECT_GT(device.smem_bytes, 0u);
    EXPECT_EQ(headrace_check(HEADRACE_CUDA, i, nullptr), HEADRACE_OK) << headrace_last_error();
  }
  EXPECT_NE(headrace_cuda_info(count, &device), HEADRACE_OK);
  EXPECT_STRNE(headrace_last_error(), "");
  EXPECT_NE(headrace_check(HEADRACE_CUDA, count, nullptr), HEADRACE_OK);
  EXPECT_NE(headrace_device_from_text("cuda:x", &device), HEADRACE_OK);
  EXPECT_TRUE(error_has("cuda:x"));
  EXPECT_EQ(headrace_cuda_info(0, nullptr), HEADRACE_INVALID_ARGUMENT);
  EXPECT_EQ(headrace_num_cuda_devices(nullptr), HEADRACE_INVALID_ARGUMENT);
}

// The fixture's call with gradients.
struct BackwardCall : Call {
  std::vector<float> lse = std::vector<float>(2 * 4 * 5);
  std::vector<float> dout = std::vector<float>(out.size(), 0.5f), dq = out, dk = out, dv = out;
  headrace_attention_gradients gradients;

  BackwardCall() {
    tensors.lse = TensorView(lse.data(), DType::f32, {2, 4, 5});
    headrace_attention_gradients_init(&gradients);
    gradients.dout = TensorView(dout.data(), DType::f32, {2, 5, 4, 8});
    gradients.dq = TensorView(dq.data(), DType::f32, {2, 5, 4, 8});
    gradients.dk = TensorView(dk.data(), DType::f32, {2, 5, 4, 8});
    gradients.dv = TensorView(dv.data(), DType::f32, {2, 5, 4, 8});
  }
  headrace_status backward() {
    return headrace_attention_backward(&tensors, &gradients, nullptr, nullptr, 0, nullptr);
  }
};

TEST(Capi, BackwardPlanAndCallAgree) {
  BackwardCall call;
  ASSERT_EQ(headrace_attention_forward(&call.tensors, nullptr, nullptr, 0, nullptr), HEADRACE_OK);
  ASSERT_EQ(call.backward(), HEADRACE_OK) << headrace_last_error();
  const auto expected = std::tuple(call.dq, call.dk, call.dv);
  EXPECT_NE(call.dv[0], 0.0f);
  for (auto* x : {&call.dq, &call.dk, &call.dv}) std::fill(x->begin(), x->end(), 0.0f);
  headrace_problem p;
  headrace_problem_init(&p);
  ASSERT_EQ(headrace_attention_backward_problem(&call.tensors, &call.gradients, nullptr, &p),
            HEADRACE_OK);
  EXPECT_EQ(p.phase, HEADRACE_BACKWARD);
  const headrace_device_info d = this_cpu();
  EXPECT_EQ(headrace_attention_supports(&p, &d), HEADRACE_OK);
  headrace_plan* plan = nullptr;
  ASSERT_EQ(headrace_plan_attention(&p, &d, &plan), HEADRACE_OK) << headrace_last_error();
  EXPECT_NE(std::string(headrace_plan_explain(plan)).find(", backward"), std::string::npos);
  std::vector<char> memory(headrace_plan_workspace_bytes(plan) + 1);
  ASSERT_EQ(headrace_plan_run_backward(plan, &call.tensors, &call.gradients, nullptr,
                                       memory.data() + 1, memory.size() - 1, nullptr),
            HEADRACE_OK)
      << headrace_last_error();
  EXPECT_EQ(std::tuple(call.dq, call.dk, call.dv), expected);
  headrace_plan_destroy(plan);
}

TEST(Capi, BackwardErrorsNameTheArgument) {
  BackwardCall call;
  headrace_problem p;
  headrace_problem_init(&p);
  EXPECT_EQ(headrace_attention_backward(nullptr, &call.gradients, nullptr, nullptr, 0, nullptr),
            HEADRACE_INVALID_ARGUMENT);
  EXPECT_TRUE(error_has("tensors=NULL"));
  EXPECT_EQ(headrace_attention_backward(&call.tensors, nullptr, nullptr, nullptr, 0, nullptr),
            HEADRACE_INVALID_ARGUMENT);
  EXPECT_TRUE(error_has("gradients=NULL"));
  EXPECT_EQ(headrace_attention_backward_problem(&call.tensors, nullptr, nullptr, &p),
            HEADRACE_INVALID_ARGUMENT);
  EXPECT_TRUE(error_has("gradients=NULL"));
  EXPECT_EQ(headrace_attention_backward_problem(&call.tensors, &call.gradients, nullptr, nullptr),
            HEADRACE_INVALID_ARGUMENT);
  EXPECT_TRUE(error_has("problem=NULL"));
  EXPECT_EQ(headrace_plan_run_backward(nullptr, &call.tensors, &call.gradients, nullptr, nullptr, 0,
                                       nullptr),
            HEADRACE_INVALID_ARGUMENT);
  EXPECT_TRUE(error_has("plan=NULL"));
  headrace_attention_gradients older = call.gradients;
  older.struct_size = 8;
  EXPECT_EQ(headrace_attention_backward(&call.tensors, &older, nullptr, nullptr, 0, nullptr),
            HEADRACE_INVALID_ARGUMENT);
  EXPECT_TRUE(error_has("gradients.struct_size=8"));
}

TEST(Capi, APlanRunsOnlyItsPhase) {
  BackwardCall call;
  headrace_problem forward, backward;
  headrace_problem_init(&forward);
  headrace_problem_init(&backward);
  ASSERT_EQ(headrace_attention_problem(&call.tensors, nullptr, &forward), HEADRACE_OK);
  ASSERT_EQ(headrace_attention_backward_problem(&call.tensors, &call.gradients, nullptr, &backward),
            HEADRACE_OK);
  const headrace_device_info d = this_cpu();
  headrace_plan *forward_plan = nullptr, *backward_plan = nullptr;
  ASSERT_EQ(headrace_plan_attention(&forward, &d, &forward_plan), HEADRACE_OK);
  ASSERT_EQ(headrace_plan_attention(&backward, &d, &backward_plan), HEADRACE_OK);
  EXPECT_EQ(headrace_plan_run(backward_plan, &call.tensors, nullptr, nullptr, 0, nullptr),
            HEADRACE_INVALID_ARGUMENT);
  EXPECT_TRUE(error_has("headrace_plan_run_backward"));
  EXPECT_EQ(headrace_plan_run_backward(forward_plan, &call.tensors, &call.gradients, nullptr,
                                       nullptr, 0, nullptr),
            HEADRACE_INVALID_ARGUMENT);
  EXPECT_TRUE(error_has("run it with headrace_plan_run"));
  // A different problem, and a workspace that is too small.
  EXPECT_EQ(headrace_plan_run_backward(backward_plan, &call.tensors, &call.gradients, nullptr,
                                       nullptr, 0, nullptr),
            HEADRACE_INVALID_ARGUMENT);
  EXPECT_TRUE(error_has("workspace of 0 bytes"));
  std::vector<float> dlse = call.lse;
  call.gradients.dlse = TensorView(dlse.data(), DType::f32, {2, 4, 5});
  EXPECT_EQ(headrace_plan_run_backward(backward_plan, &call.tensors, &call.gradients, nullptr,
                                       nullptr, 0, nullptr),
            HEADRACE_INVALID_ARGUMENT);
  EXPECT_TRUE(error_has("has_dlse=1 but the plan was made for has_dlse=0"));
  headrace_plan_destroy(forward_plan);
  headrace_plan_destroy(backward_plan);
}

TEST(Capi, CudaBuildsSupportTheBackward) {
  headrace_problem p;
  headrace_problem_init(&p);
  p.phase = HEADRACE_BACKWARD;
  p.has_lse = 1;
  headrace_device_info gpu{};
  gpu.struct_size = sizeof gpu;
  ASSERT_EQ(headrace_device_from_text("sm90:132", &gpu), HEADRACE_OK);
  if (headrace_num_kernels(HEADRACE_CUDA, HEADRACE_BACKWARD) > 0) {
    EXPECT_EQ(headrace_attention_supports(&p, &gpu), HEADRACE_OK);
  } else {
    EXPECT_EQ(headrace_attention_supports(&p, &gpu), HEADRACE_UNSUPPORTED);
    EXPECT_TRUE(error_has("no CUDA kernels; build with CUDA or pass tensors in CPU memory"));
  }
}

TEST(Capi, NamesAndLists) {
  EXPECT_STREQ(headrace_version(), "0.1.0");
  EXPECT_STREQ(headrace_status_name(HEADRACE_OUT_OF_MEMORY), "out_of_memory");
  EXPECT_STREQ(headrace_status_name(HEADRACE_BUSY), "busy");
  EXPECT_STREQ(headrace_status_name(static_cast<headrace_status>(8)), "unknown");
  const char* variables[] = {"HEADRACE_CPU_ISA", "HEADRACE_CUDA_SM", "HEADRACE_NUM_THREADS",
                             "HEADRACE_KERNEL", nullptr};
  for (int i = 0; i < 5; ++i) {
    EXPECT_STREQ(headrace_env_name(i), variables[i]);
    EXPECT_EQ(headrace_env_text(i) == nullptr, variables[i] == nullptr);
  }
  EXPECT_EQ(headrace_env_name(-1), nullptr);
  EXPECT_EQ(headrace_num_kernels(9, HEADRACE_FORWARD), 0);
  EXPECT_EQ(headrace_num_kernels(HEADRACE_CPU, 2), 0);
  EXPECT_EQ(headrace_kernel_name(HEADRACE_CPU, 2, 0), nullptr);
  const headrace_device_info device = this_cpu();
  for (const int32_t phase : {HEADRACE_FORWARD, HEADRACE_BACKWARD}) {
    const int count = headrace_num_kernels(HEADRACE_CPU, phase);
    EXPECT_GT(count, 0);
    headrace_problem problem;
    headrace_problem_init(&problem);
    problem.phase = phase;
    problem.has_lse = 1;
    int num_taking = 0;
    for (int i = 0; i < count; ++i) {
      EXPECT_GT(std::strlen(headrace_kernel_name(HEADRACE_CPU, phase, i)), 0u);
      EXPECT_GT(std::strlen(headrace_kernel_summary(HEADRACE_CPU, phase, i)), 0u);
      const char* refusal = headrace_kernel_refusal(&problem, &device, i);
      ASSERT_NE(refusal, nullptr);
      num_taking += refusal[0] == '\0';
    }
    EXPECT_GT(num_taking, 0);
    EXPECT_EQ(headrace_kernel_name(HEADRACE_CPU, phase, count), nullptr);
    EXPECT_EQ(headrace_kernel_name(HEADRACE_CPU, phase, -1), nullptr);
    EXPECT_EQ(headrace_kernel_refusal(&problem, &device, count), nullptr);
    const int num_cuda = headrace_num_kernels(HEADRACE_CUDA, phase);  // 0 without CUDA
    EXPECT_EQ(headrace_kernel_summary(HEADRACE_CUDA, phase, num_cuda), nullptr);
  }
  EXPECT_EQ(headrace_check(HEADRACE_CPU, 0, nullptr), HEADRACE_OK);
  EXPECT_EQ(headrace_check(5, 0, nullptr), HEADRACE_INVALID_ARGUMENT);
}

TEST(Capi, EmptyBatchesAreFine) {
  Call call;
  for (auto* view : {&call.tensors.q, &call.tensors.k, &call.tensors.v, &call.tensors.out}) {
    view->shape[0] = 0;
    view->data = nullptr;
  }
  EXPECT_EQ(call.forward(), HEADRACE_OK) << headrace_last_error();
  Call keyless;
  for (auto* view : {&keyless.tensors.k, &keyless.tensors.v}) {
    view->shape[1] = 0;
    view->data = nullptr;
  }
  EXPECT_EQ(keyless.forward(), HEADRACE_OK) << headrace_last_error();
  for (const float x : keyless.out) EXPECT_EQ(x, 0.0f);
}

TEST(Capi, OnePlanManyThreads) {
  Call model;
  const headrace_problem p = model.problem();
  const headrace_device_info d = this_cpu();
  headrace_plan* plan = nullptr;
  ASSERT_EQ(headrace_plan_attention(&p, &d, &plan), HEADRACE_OK);
  ASSERT_EQ(model.forward(), HEADRACE_OK);
  std::atomic<int> num_wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 16; ++t)
    threads.emplace_back([&] {
      Call call;
      std::vector<char> memory(headrace_plan_workspace_bytes(plan));
      for (int i = 0; i < 50; ++i) {
        std::fill(call.out.begin(), call.out.end(), -1.0f);
        const headrace_status status =
            headrace_plan_run(plan, &call.tensors, nullptr, memory.data(), memory.size(), nullptr);
        num_wrong += status != HEADRACE_OK || call.out != model.out;
        num_wrong += call.forward() != HEADRACE_OK || call.out != model.out;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(num_wrong, 0);
  headrace_plan_destroy(plan);
}

TEST(Capi, SoftmaxOfAnAxis) {
  float x[2][3] = {{0, 1, 2}, {0, 0, 0}}, y[2][3] = {}, lse[2] = {}, dx[2][3] = {};
  const auto view = [](void* data, int rank) {
    headrace_tensor t{};
    t.data = data;
    t.dtype = HEADRACE_F32;
    t.rank = rank;
    t.shape[0] = 2;
    t.strides[0] = rank == 2 ? 3 : 1;
    if (rank == 2) t.shape[1] = 3;
    if (rank == 2) t.strides[1] = 1;
    return t;
  };
  headrace_softmax_tensors tensors;
  headrace_softmax_tensors_init(&tensors);
  EXPECT_EQ(headrace_softmax_forward(&tensors, nullptr, nullptr), HEADRACE_INVALID_ARGUMENT);
  tensors.x = view(x, 2);
  tensors.y = view(y, 2);
  tensors.lse = view(lse, 1);
  ASSERT_EQ(headrace_softmax_forward(&tensors, nullptr, nullptr), HEADRACE_OK)
      << headrace_last_error();
  EXPECT_NEAR(y[0][2], std::exp(2.0) / (1 + std::exp(1.0) + std::exp(2.0)), 1e-7);
  EXPECT_NEAR(lse[1], std::log(3.0), 1e-7);
  headrace_softmax_backward_tensors gradients;
  headrace_softmax_backward_tensors_init(&gradients);
  gradients.y = tensors.y;
  gradients.dy = tensors.x;
  gradients.dx = view(dx, 2);
  headrace_softmax_options options;
  headrace_softmax_options_init(&options);
  ASSERT_EQ(headrace_softmax_backward(&gradients, &options, nullptr), HEADRACE_OK);
  EXPECT_NEAR(dx[0][0] + dx[0][1] + dx[0][2], 0, 1e-6);
  options.struct_size = 4;
  EXPECT_EQ(headrace_softmax_backward(&gradients, &options, nullptr), HEADRACE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(headrace_last_error()).find("options.struct_size=4"), std::string::npos);
  EXPECT_EQ(headrace_softmax_forward(nullptr, nullptr, nullptr), HEADRACE_INVALID_ARGUMENT);
}

}  // namespace
