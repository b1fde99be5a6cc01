// Merges of attention states on a GPU: every case of the CPU's tests against double; bits, special
// values, graphs.
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <vector>

#include "backends/cuda/backend.h"
#include "cuda/gpu.h"
#include "support/merge_case.h"

namespace headrace::testing {
namespace {

// A call whose tensors are on the device.
class DeviceMerge {
 public:
  explicit DeviceMerge(MergeCall& call) : views_(call.views()) {
    for (Tensor* tensor : call.memory()) copies_.emplace_back(*tensor);
    for (headrace_tensor& x : views_.outs) to_device(x);
    for (headrace_tensor& x : views_.lses) to_device(x);
    to_device(views_.tensors.out);
    if (views_.tensors.lse.rank > 0) to_device(views_.tensors.lse);
  }
  DeviceMerge(const DeviceMerge&) = delete;
  Status run(Stream stream = nullptr) { return merge_states(views_.tensors, stream); }
  void read_back() {
    HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
    for (Copy& copy : copies_) {  // in place: views point into the memory
      const std::vector<unsigned char> bytes = copy.device.read();
      std::copy(bytes.begin(), bytes.end(), copy.tensor.bytes().begin());
    }
  }

 private:
  struct Copy {
    explicit Copy(Tensor& host) : tensor(host), device(host.bytes()) {}
    Tensor& tensor;
    OnDevice<unsigned char> device;
  };
  void to_device(headrace_tensor& view) {
    for (Copy& copy : copies_) {
      if (view.data != copy.tensor.view().data) continue;
      view.data = copy.tensor.view_at(copy.device.data()).data;
      view.device_type = HEADRACE_CUDA;
      return;
    }
    FAIL() << "a view of no tensor";
  }

  std::list<Copy> copies_;
  MergeCall::Views views_;
};

void merge_on_device(MergeCall& call) {
  DeviceMerge on_device(call);
  const Status bad = on_device.run();
  ASSERT_FALSE(bad) << bad->message;
  on_device.read_back();
}

TEST(CudaMergeStates, IsTheWeightedMeanOfTheStates) {
  HEADRACE_NEEDS_GPU(80);
  for_merge_cases([](const MergeCase& c) {
    MergeCall call(c);
    const MergeCall::Expected want = call.expected();
    merge_on_device(call);
    call.expect_merged(want);
  });
}

// More rows than a grid of one wave: a row's bits are those of a call with few rows.
TEST(CudaMergeStates, BitsOfARowDependOnItAlone) {
  HEADRACE_NEEDS_GPU(80);
  MergeCase c;
  c.num_states = 9;
  c.dtype = c.out_dtype = DType::bf16;
  c.seqlen = 20000;
  c.num_heads = 1;
  c.head_dim_v = 64;
  MergeCall many(c);
  MergeCall::Views v = many.views();
  c.seqlen = 3;
  MergeCall few(c);
  for (int i = 0; i < c.num_states; ++i) {
    const auto last = [&](const headrace_tensor& x, int axis) {
      const TensorView part = *TensorView(x).slice(axis, x.shape[axis] - 3, x.shape[axis]);
      Doubles values(static_cast<std::size_t>(part.num_elements()));
      for_elements(part, [&](std::int64_t j, std::int64_t offset) {
        values[static_cast<std::size_t>(j)] = load_as_double(part.type(), part.data, offset);
      });
      return values;
    };
    const auto at = static_cast<std::size_t>(i);
    few.set_state(i, last(v.outs[at], 1), last(v.lses[at], 2));
  }
  merge_on_device(many);
  merge_on_device(few);
  const Doubles all = many.out().values(), some = few.out().values();
  EXPECT_EQ(Doubles(all.end() - static_cast<std::ptrdiff_t>(some.size()), all.end()), some);
}

TEST(CudaMergeStates, NanAndInfinityPropagate) {
  HEADRACE_NEEDS_GPU(80);
  MergeCase c;
  c.num_states = 3;
  c.seqlen = c.num_heads = 1;
  c.head_dim_v = 40;
  const auto merged = [&](const double(&outs)[3], const double(&lses)[3]) {
    MergeCall call(c);
    for (int i = 0; i < 3; ++i) call.set_state(i, Doubles(40, outs[i]), {lses[i]});
    merge_on_device(call);
    return std::pair{call.out().values()[39], call.lse().values()[0]};
  };
  for (int i = 0; i < 3; ++i) {
    double outs[3] = {1, 2, 3}, lses[3] = {0, kNoKeys, 0.5};
    lses[i] = NAN;
    EXPECT_TRUE(std::isnan(merged(outs, lses).first)) << i;
    EXPECT_TRUE(std::isnan(merged(outs, lses).second)) << i;
    lses[i] = 0;
    outs[i] = NAN;
    EXPECT_TRUE(std::isnan(merged(outs, lses).first)) << i;
    lses[i] = kNoKeys;
    EXPECT_FALSE(std::isnan(merged(outs, lses).first)) << i;
  }
  EXPECT_EQ(merged({NAN, NAN, NAN}, {kNoKeys, kNoKeys, kNoKeys}), (std::pair{0.0, kNoKeys}));
  EXPECT_EQ(merged({1, 2, 3}, {HUGE_VAL, 0, HUGE_VAL}), (std::pair{2.0, HUGE_VAL}));
}

TEST(CudaMergeStates, IsCapturedInAGraph) {
  HEADRACE_NEEDS_GPU(80);
  MergeCase c;
  c.num_states = 4;
  MergeCall call(c), plain(c);
  merge_on_device(plain);
  DeviceMerge on_device(call);
  cudaStream_t stream{};
  cudaGraph_t graph{};
  cudaGraphExec_t exec{};
  HEADRACE_EXPECT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  HEADRACE_EXPECT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  const Status bad = on_device.run(stream);
  HEADRACE_EXPECT_CUDA(cudaStreamEndCapture(stream, &graph));
  ASSERT_FALSE(bad) << bad->message;
  HEADRACE_EXPECT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  HEADRACE_EXPECT_CUDA(cudaGraphLaunch(exec, stream));
  on_device.read_back();
  EXPECT_EQ(call.out().bytes(), plain.out().bytes());
  EXPECT_EQ(call.lse().bytes(), plain.lse().bytes());
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST(CudaMergeStates, RefusesMemoryOfTheHost) {
  HEADRACE_NEEDS_GPU(80);
  MergeCall call(MergeCase{});
  MergeCall::Views v = call.views();
  for (headrace_tensor* x :
       {&v.outs[0], &v.outs[1], &v.lses[0], &v.lses[1], &v.tensors.out, &v.tensors.lse})
    x->device_type = HEADRACE_CUDA;
  const Status bad = merge_states(v.tensors, nullptr);
  ASSERT_TRUE(bad);
  EXPECT_EQ(bad->message.find("outs"), 0u) << bad->message;
}

}  // namespace
}  // namespace headrace::testing
