// Every error of softmax names the argument, what arrived, the rule and the remedy.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/softmax.h"
#include "tests/support/every_rule.h"
#include "tests/support/golden_texts.h"

namespace headrace {
namespace {

struct Call {
  alignas(16) float memory[4][24] = {};
  headrace_softmax_tensors t{};
  headrace_softmax_backward_tensors b{};
  headrace_softmax_options o = default_softmax_options();

  Call() {
    const auto view = [&](int i) { return TensorView(memory[i], DType::f32, {2, 3, 4}); };
    t.struct_size = sizeof t;
    t.x = view(0);
    t.y = view(1);
    t.lse = TensorView(memory[2], DType::f32, {2, 3});
    b.struct_size = sizeof b;
    b.y = view(0);
    b.dy = view(1);
    b.dx = view(2);
  }
};

struct Bad {
  const char* name;
  std::function<void(Call&)> break_it;
  std::vector<std::string> parts;
};

void expect_refused(const Bad& bad, const Status& status, testing::GoldenTexts& texts) {
  ASSERT_TRUE(status.has_value()) << bad.name;
  EXPECT_EQ(status->code, ErrorCode::invalid_argument) << bad.name;
  texts.add(status->message);
  for (const std::string& part : bad.parts)
    EXPECT_NE(status->message.find(part), std::string::npos)
        << bad.name << ": \"" << part << "\" is not in: " << status->message;
}

TEST(SoftmaxErrors, AGoodCallRuns) {
  Call call;
  EXPECT_FALSE(softmax_forward(call.t, call.o, nullptr));
  EXPECT_FALSE(softmax_backward(call.b, call.o, nullptr));
}

TEST(SoftmaxErrors, EveryRuleOfEveryTensor) {
  struct Forward : Call {
    std::vector<testing::Role> roles() {
      return {
          {"x", &t.x, false, false, true}, {"y", &t.y, false, true}, {"lse", &t.lse, false, true}};
    }
    Status run() { return softmax_forward(t, o, nullptr); }
    std::vector<float> results() { return {&memory[1][0], &memory[3][0]}; }
  };
  testing::expect_every_rule([] { return std::make_unique<Forward>(); });
  struct Backward : Call {
    std::vector<testing::Role> roles() {
      return {{"y", &b.y, false, false, true}, {"dy", &b.dy}, {"dx", &b.dx, false, true}};
    }
    Status run() { return softmax_backward(b, o, nullptr); }
    std::vector<float> results() { return {&memory[2][0], &memory[3][0]}; }
  };
  testing::expect_every_rule([] { return std::make_unique<Backward>(); });
}

TEST(SoftmaxErrors, ForwardErrorsNameArgumentRuleAndRemedy) {
  testing::GoldenTexts texts("ops.txt");
  const Bad cases[] = {
      {"no x", [](Call& c) { c.t.x = TensorView(); }, {"x: not given", "required"}},
      {"no y", [](Call& c) { c.t.y = TensorView(); }, {"y: not given", "shape and dtype of x"}},
      {"rank 0", [](Call& c) { c.t.x.rank = 0; }, {"x.rank=0", "must be 1 to 6", "reshape"}},
      {"rank 7", [](Call& c) { c.t.x.rank = 7; }, {"x.rank=7", "must be 1 to 6"}},
      {"null", [](Call& c) { c.t.x.data = nullptr; }, {"x.data=NULL"}},
      {"dtype", [](Call& c) { c.t.x.dtype = HEADRACE_I32; }, {"x.dtype=i32", "f32, f16 or bf16"}},
      {"f64", [](Call& c) { c.t.x.dtype = HEADRACE_F64; }, {"x.dtype=f64", "convert"}},
      {"unknown dtype", [](Call& c) { c.t.x.dtype = 99; }, {"x.dtype=99"}},
      {"y dtype", [](Call& c) { c.t.y.dtype = HEADRACE_F16; }, {"y.dtype=f16", "x.dtype=f32"}},
      {"y rank", [](Call& c) { c.t.y.rank = 2; }, {"y.rank=2", "must be 3"}},
      {"y shape", [](Call& c) { c.t.y.shape[1] = 2; }, {"y.shape[1]=2", "x.shape[1]=3"}},
      {"negative", [](Call& c) { c.t.x.shape[0] = -1; }, {"x.shape[0]=-1", "not be negative"}},
      {"reach", [](Call& c) { c.t.x.strides[0] = INT64_MAX; }, {"x.strides[0]=", "64 bits"}},
      {"device", [](Call& c) { c.t.y.device_type = HEADRACE_CUDA; }, {"y.device_type=1", "equal"}},
      {"axis high", [](Call& c) { c.o.axis = 3; }, {"axis=3", "-3 to 2", "rank 3"}},
      {"axis low", [](Call& c) { c.o.axis = -4; }, {"axis=-4", "-3 to 2"}},
      {"axis lowest", [](Call& c) { c.o.axis = INT32_MIN; }, {"axis=-2147483648"}},
      {"scale", [](Call& c) { c.o.scale = 1e300; }, {"scale=1e+300", "finite as f32", "pass 1"}},
      {"scale nan", [](Call& c) { c.o.scale = NAN; }, {"scale=nan", "finite"}},
      {"algorithm", [](Call& c) { c.o.algorithm = 3; }, {"algorithm=3", "0 (auto), 1 (safe)"}},
      {"lse dtype", [](Call& c) { c.t.lse.dtype = HEADRACE_BF16; }, {"lse.dtype=bf16", "be f32"}},
      {"lse rank", [](Call& c) { c.t.lse.rank = 1; }, {"lse.rank=1", "without the axis"}},
      {"lse shape", [](Call& c) { c.t.lse.shape[1] = 2; }, {"lse.shape[1]=2", "x.shape[1]=3"}},
      {"lse is x", [](Call& c) { c.t.lse.data = c.memory[0]; }, {"lse overlaps x", "own"}},
      {"lse is y", [](Call& c) { c.t.lse.data = c.memory[1]; }, {"lse overlaps y"}},
      {"y shifted", [](Call& c) { c.t.y.data = c.memory[0] + 1; }, {"y overlaps x", "same view"}},
      {"y broadcast", [](Call& c) { c.t.y.strides[0] = 0; }, {"y overlaps itself"}},
  };
  for (const Bad& bad : cases) {
    Call call;
    bad.break_it(call);
    expect_refused(bad, softmax_forward(call.t, call.o, nullptr), texts);
  }
  Call call;
  expect_refused({"stream", nullptr, {"stream=", "NULL on CPU"}},
                 softmax_forward(call.t, call.o, &call), texts);
}

TEST(SoftmaxErrors, BackwardErrorsNameArgumentRuleAndRemedy) {
  testing::GoldenTexts texts("ops.txt");
  const Bad cases[] = {
      {"no y", [](Call& c) { c.b.y = TensorView(); }, {"y: not given"}},
      {"no dy", [](Call& c) { c.b.dy = TensorView(); }, {"dy: not given", "shape and dtype of y"}},
      {"no dx", [](Call& c) { c.b.dx = TensorView(); }, {"dx: not given"}},
      {"dy shape", [](Call& c) { c.b.dy.shape[2] = 3; }, {"dy.shape[2]=3", "y.shape[2]=4"}},
      {"dx dtype", [](Call& c) { c.b.dx.dtype = HEADRACE_F16; }, {"dx.dtype=f16"}},
      {"axis", [](Call& c) { c.o.axis = 5; }, {"axis=5"}},
      {"dx shifted", [](Call& c) { c.b.dx.data = c.memory[0] + 2; }, {"dx overlaps y"}},
      {"dx crosses dy", [](Call& c) { c.b.dx.data = c.memory[1] + 2; }, {"dx overlaps dy"}},
      {"dx broadcast", [](Call& c) { c.b.dx.strides[1] = 0; }, {"dx overlaps itself"}},
  };
  for (const Bad& bad : cases) {
    Call call;
    bad.break_it(call);
    expect_refused(bad, softmax_backward(call.b, call.o, nullptr), texts);
  }
}

TEST(SoftmaxErrors, AnEmptyTensorNeedsNoDataAndNoStrides) {
  Call call;
  for (headrace_tensor* x : {&call.t.x, &call.t.y}) {
    x->data = nullptr;
    x->shape[0] = 0;
    x->strides[1] = INT64_MIN;
  }
  call.t.lse.shape[0] = 0;
  EXPECT_FALSE(softmax_forward(call.t, call.o, nullptr));
}

}  // namespace
}  // namespace headrace
