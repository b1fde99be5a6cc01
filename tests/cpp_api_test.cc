// The C++ wrappers: a C status becomes an Error, and nothing else is thrown.
#include <gtest/gtest.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "headrace/headrace.hpp"

namespace {

using namespace headrace;

static_assert(!std::is_copy_constructible_v<Plan> && std::is_nothrow_move_constructible_v<Plan>);

struct Buffers {
  std::vector<float> q = std::vector<float>(2 * 3 * 4 * 8, 1.0f);
  std::vector<float> v = std::vector<float>(2 * 3 * 4 * 8, 2.5f);
  std::vector<float> out = std::vector<float>(2 * 3 * 4 * 8, -1.0f);
  std::vector<float> lse = std::vector<float>(2 * 4 * 3);
  TensorView view(std::vector<float>& x) { return TensorView(x.data(), DType::f32, {2, 3, 4, 8}); }
};

TEST(CppApi, ForwardOfEqualValuesIsTheValue) {
  Buffers b;
  attention_forward(b.view(b.q), b.view(b.q), b.view(b.v), b.view(b.out), {},
                    {.causal = Causal::bottom_right});
  for (const float x : b.out) EXPECT_FLOAT_EQ(x, 2.5f);
}

TEST(CppApi, BackwardOfASingleKeyPassesDoutToItsValue) {
  std::vector<float> q(8, 1.0f), out(8), lse(1), dout{1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<float> dq(8, -1.0f), dk(8, -1.0f), dv(8, -1.0f);
  const auto view = [](std::vector<float>& x) {
    return TensorView(x.data(), DType::f32, {1, 1, 1, 8});
  };
  const AttentionTensors tensors{.q = view(q),
                                 .k = view(q),
                                 .v = view(q),
                                 .out = view(out),
                                 .lse = TensorView(lse.data(), DType::f32, {1, 1, 1})};
  const AttentionGradients gradients{
      .dout = view(dout), .dq = view(dq), .dk = view(dk), .dv = view(dv)};
  attention_forward(tensors);
  attention_backward(tensors, gradients);
  EXPECT_EQ(dv, dout);
  for (const float x : dq) EXPECT_EQ(x, 0.0f);
  const Plan plan = plan_attention(Problem(tensors, gradients), cpu_info());
  std::vector<char> memory(plan.workspace_bytes());
  std::fill(dv.begin(), dv.end(), -1.0f);
  plan.run_backward(tensors, gradients, {memory.data(), memory.size()});
  EXPECT_EQ(dv, dout);
  EXPECT_THROW(plan.run(tensors, {memory.data(), memory.size()}), Error);
}

TEST(CppApi, PlanRunsAndMoves) {
  Buffers b;
  const AttentionTensors tensors{
      .q = b.view(b.q), .k = b.view(b.q), .v = b.view(b.v), .out = b.view(b.out)};
  Plan plan = plan_attention(Problem(tensors), cpu_info());
  Plan moved = std::move(plan);
  std::vector<char> memory(moved.workspace_bytes());
  moved.run(tensors, {memory.data(), memory.size()});
  EXPECT_FLOAT_EQ(b.out[0], 2.5f);
  EXPECT_NE(std::string(moved.explain()).find("-> selected"), std::string::npos);
  EXPECT_NE(std::string(moved.explain()).find(moved.kernel()), std::string::npos);
  plan = std::move(moved);
  plan.run(tensors, {memory.data(), memory.size()});
}

TEST(CppApi, ThrowsErrorsWithCodeAndText) {
  Buffers b;
  try {
    attention_forward(b.view(b.q), b.view(b.q), b.view(b.v), b.view(b.q));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), HEADRACE_INVALID_ARGUMENT);
    EXPECT_NE(std::string(error.what()).find("out overlaps q"), std::string::npos);
  }
  EXPECT_THROW(device_from_text("toaster"), Error);
  EXPECT_THROW(plan_attention(Problem(), device_from_text("sm70:80")), Error);
}

TEST(CppApi, Supports) {
  Problem problem;
  EXPECT_TRUE(supports(problem, cpu_info()));
  EXPECT_FALSE(supports(problem, device_from_text("sm70:80")));
  problem.causal = 9;
  EXPECT_THROW(supports(problem, cpu_info()), Error);
  EXPECT_STREQ(version(), "0.1.0");
  EXPECT_NE(std::string(build_info()).find("headrace 0.1.0"), std::string::npos);
}

TEST(CppApi, Softmax) {
  std::vector<float> x = {1, 1, 1, 5}, y(4), dx(4);
  const auto view = [](std::vector<float>& values) {
    return TensorView(values.data(), DType::f32, {2, 2});
  };
  softmax_forward(view(x), view(y), {}, {.axis = 0, .algorithm = SoftmaxAlgorithm::online});
  EXPECT_EQ(y[0], 0.5f);
  EXPECT_EQ(y[2], 0.5f);
  softmax_backward(view(y), view(x), view(dx), {.axis = 0});
  EXPECT_EQ(dx[0], 0);
  EXPECT_THROW(softmax_forward(view(x), view(y), {}, {.axis = 2}), Error);
}

}  // namespace
