// The C and C++ API on a GPU, from a program with its own CUDA runtime: streams, graphs, pointers
// to the wrong memory, lengths in device memory.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <headrace/headrace.hpp>

#include "cuda/gpu.h"

namespace headrace::testing {
namespace {

std::vector<float> numbers(std::size_t count, unsigned seed) {
  std::vector<float> values(count);
  for (float& value : values) {
    seed = seed * 1664525u + 1013904223u;
    value = static_cast<float>(seed >> 8) / (1 << 23) - 1;
  }
  return values;
}

// One call in f32, in host memory and on the device.
struct Call {
  std::int64_t batch = 2, seqlen = 70, heads = 4, kv_heads = 2, dim = 40;
  std::vector<float> q, k, v, out;
  OnDevice<float> on_q, on_k, on_v, on_out;

  explicit Call(unsigned seed)
      : q(numbers(static_cast<std::size_t>(2 * 70 * 4 * 40), seed)),
        k(numbers(static_cast<std::size_t>(2 * 70 * 2 * 40), seed + 1)),
        v(numbers(static_cast<std::size_t>(2 * 70 * 2 * 40), seed + 2)),
        out(q.size(), -7),
        on_q(q),
        on_k(k),
        on_v(v),
        on_out(out) {}

  TensorView view(const float* data, std::int64_t num_heads, bool is_cuda) const {
    TensorView x(data, DType::f32, {batch, seqlen, num_heads, dim});
    x.device_type = is_cuda ? HEADRACE_CUDA : HEADRACE_CPU;
    return x;
  }
  AttentionTensors tensors(bool is_cuda) {
    return {.q = view(is_cuda ? on_q.data() : q.data(), heads, is_cuda),
            .k = view(is_cuda ? on_k.data() : k.data(), kv_heads, is_cuda),
            .v = view(is_cuda ? on_v.data() : v.data(), kv_heads, is_cuda),
            .out = view(is_cuda ? on_out.data() : out.data(), heads, is_cuda)};
  }
};

void expect_close(const std::vector<float>& got, const std::vector<float>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  float worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i)
    worst = std::max(worst, std::isnan(got[i]) ? INFINITY : std::abs(got[i] - expected[i]));
  // |V| < 1, weights sum to 1, scores below 40 / sqrt(40): some tens of roundings of float.
  EXPECT_LT(worst, 1e-5f);
}

class Stream {
 public:
  Stream() { HEADRACE_EXPECT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  Stream(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(stream_); }
  cudaStream_t get() const { return stream_; }
  void wait() const { HEADRACE_EXPECT_CUDA(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

// The first call in the process is captured in a graph, so kernels are loaded during the capture.
TEST(CudaApi, AFirstCallIsCapturedAndReplayed) {
  HEADRACE_NEEDS_GPU(80);
  Call call(1);
  const Stream stream;
  const AttentionOptions options{.causal = Causal::bottom_right};
  const Plan plan = plan_attention(Problem(call.tensors(true), options), cuda_info(0));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  HEADRACE_EXPECT_CUDA(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal));
  EXPECT_NO_THROW(plan.run(call.tensors(true), {}, {}, stream.get()));
  HEADRACE_EXPECT_CUDA(cudaStreamEndCapture(stream.get(), &graph));
  HEADRACE_EXPECT_CUDA(cudaGraphInstantiate(&replay, graph, 0));
  EXPECT_EQ(call.on_out.read()[0], -7);
  HEADRACE_EXPECT_CUDA(cudaGraphLaunch(replay, stream.get()));
  stream.wait();
  const std::vector<float> replayed = call.on_out.read();
  HEADRACE_EXPECT_CUDA(cudaMemset(call.on_out.data(), 0, call.out.size() * sizeof(float)));
  HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
  plan.run(call.tensors(true), {}, {}, stream.get());
  stream.wait();
  EXPECT_EQ(call.on_out.read(), replayed);
  attention_forward(call.tensors(false), options);
  expect_close(replayed, call.out);
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
}

TEST(CudaApi, ForwardAgreesWithTheCpu) {
  HEADRACE_NEEDS_GPU(80);
  Call call(2);
  attention_forward(call.tensors(true));
  attention_forward(call.tensors(false));
  HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
  expect_close(call.on_out.read(), call.out);
}

TEST(CudaApi, TwoStreamsAtOnce) {
  HEADRACE_NEEDS_GPU(80);
  Call one(3), other(4);
  const Stream first, second;
  for (int i = 0; i < 20; ++i) {
    attention_forward(one.tensors(true), {}, {}, first.get());
    attention_forward(other.tensors(true), {}, {}, second.get());
  }
  first.wait();
  second.wait();
  attention_forward(one.tensors(false));
  attention_forward(other.tensors(false));
  expect_close(one.on_out.read(), one.out);
  expect_close(other.on_out.read(), other.out);
}

// Eight queries are few enough for split keys, whose partial results need a workspace.
TEST(CudaApi, ACallWithoutAWorkspaceAllocatesOne) {
  HEADRACE_NEEDS_GPU(80);
  Call call(8);
  const AttentionOptions options{.num_splits = 2};
  const auto tensors = [&](bool is_cuda) {
    AttentionTensors x = call.tensors(is_cuda);
    for (TensorView* rows : {&x.q, &x.out}) *rows = rows->slice(1, 0, 8).value();
    return x;
  };
  const Plan plan = plan_attention(Problem(tensors(true), options), cuda_info(0));
  ASSERT_GT(plan.workspace_bytes(), 0u);
  EXPECT_THROW(plan.run(tensors(true)), Error);  // run() does not allocate one
  const Stream stream;
  for (int i = 0; i < 3; ++i) attention_forward(tensors(true), options, {}, stream.get());
  stream.wait();
  attention_forward(tensors(false), options);
  expect_close(call.on_out.read(), call.out);
}

std::string error_of(const AttentionTensors& tensors, const AttentionOptions& options = {}) {
  try {
    attention_forward(tensors, options);
  } catch (const Error& error) {
    return std::string(headrace_status_name(error.code())) + ": " + error.what();
  }
  return "ok";
}

TEST(CudaApi, PointersOnTheWrongDeviceAreNamed) {
  HEADRACE_NEEDS_GPU(80);
  Call call(5);
  AttentionTensors tensors = call.tensors(true);
  tensors.k = call.view(call.k.data(), call.kv_heads, true);  // host memory labelled cuda:0
  EXPECT_EQ(error_of(tensors).find("invalid_argument: k.data="), 0u) << error_of(tensors);
  tensors = call.tensors(true);
  for (TensorView* x : {&tensors.q, &tensors.k, &tensors.v, &tensors.out}) x->device_id = 63;
  EXPECT_NE(error_of(tensors), "ok");
  EXPECT_EQ(error_of(call.tensors(true)), "ok");  // no sticky error is left
  HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
}

TEST(CudaApi, APlanRunsOnlyOnItsKindOfDevice) {
  HEADRACE_NEEDS_GPU(90);
  Call call(6);
  const Plan plan = plan_attention(Problem(call.tensors(true)), device_from_text("sm80:108"));
  EXPECT_THROW(plan.run(call.tensors(true)), Error);
}

TEST(CudaApi, DevicesByText) {
  HEADRACE_NEEDS_GPU(80);
  const DeviceInfo device = device_from_text("cuda:0"), again = cuda_info(0);
  EXPECT_EQ(std::memcmp(&device, &again, sizeof device), 0);
  EXPECT_EQ(device_from_text("cuda").device_id, 0);
  EXPECT_THROW(device_from_text("cuda:63"), Error);
}

// Two sequences of 3 and 4 rows, one head; the lengths of k as given.
struct RaggedCall {
  std::vector<float> memory = numbers(7 * 8, 9);
  OnDevice<float> q{memory}, k{memory}, v{memory}, out{memory};
  OnDevice<std::int32_t> lengths_q{{0, 3, 7}}, lengths_k;
  explicit RaggedCall(const std::vector<std::int32_t>& cu_seqlens_k) : lengths_k(cu_seqlens_k) {}

  std::string run(bool is_checked) {
    AttentionTensors t;
    const auto view = [](const void* data, DType dtype, std::initializer_list<std::int64_t> sizes) {
      TensorView x(data, dtype, sizes);
      x.device_type = HEADRACE_CUDA;
      return x;
    };
    t.q = view(q.data(), DType::f32, {7, 1, 8});
    t.k = view(k.data(), DType::f32, {7, 1, 8});
    t.v = view(v.data(), DType::f32, {7, 1, 8});
    t.out = view(out.data(), DType::f32, {7, 1, 8});
    t.cu_seqlens_q = view(lengths_q.data(), DType::i32, {3});
    t.cu_seqlens_k = view(lengths_k.data(), DType::i32, {3});
    return error_of(t, {.max_seqlen_q = 4, .max_seqlen_k = 4, .checked = is_checked});
  }
};

TEST(CudaApi, BadLengthsAreClampedAndReportedOnce) {
  HEADRACE_NEEDS_GPU(80);
  for (const std::vector<std::int32_t>& bad : {std::vector<std::int32_t>{0, 3, 1000000},
                                               {0, 2000000000, 7},
                                               {-5, 3, 7},
                                               {0, 3, 2},
                                               {0, 6, 7},
                                               {0, 3, 6},
                                               {INT32_MIN, INT32_MAX, INT32_MIN}}) {
    RaggedCall call(bad);
    EXPECT_EQ(call.run(false), "ok");
    EXPECT_EQ(headrace_check(HEADRACE_CUDA, 0, nullptr), HEADRACE_INVALID_ARGUMENT);
    EXPECT_NE(std::strstr(headrace_last_error(), "cu_seqlens_k"), nullptr) << headrace_last_error();
    EXPECT_EQ(headrace_check(HEADRACE_CUDA, 0, nullptr), HEADRACE_OK);
    EXPECT_EQ(call.run(true).find("invalid_argument: cu_seqlens_k["), 0u) << call.run(true);
    EXPECT_EQ(headrace_check(HEADRACE_CUDA, 0, nullptr), HEADRACE_OK);  // nothing ran
  }
  RaggedCall good({0, 4, 7});
  EXPECT_EQ(good.run(false), "ok");
  EXPECT_EQ(good.run(true), "ok");
  EXPECT_EQ(headrace_check(HEADRACE_CUDA, 0, nullptr), HEADRACE_OK);
}

// Prints the host cost of a call; checks nothing.
TEST(CudaApi, CostOfARunOnTheHost) {
  HEADRACE_NEEDS_GPU(80);
  constexpr int kRounds = 20, kTimes = 100;  // per round, few enough for the stream's queue
  Call call(7);
  const Stream stream;
  const AttentionTensors tensors = call.tensors(true);
  const Plan plan = plan_attention(Problem(tensors), cuda_info(0));
  std::chrono::duration<double, std::micro> time{};
  for (int round = 0; round <= kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kTimes; ++i) plan.run(tensors, {}, {}, stream.get());
    if (round > 0) time += std::chrono::steady_clock::now() - start;
    stream.wait();
  }
  std::printf("run: %.2f us per call on the host\n", time.count() / (kRounds * kTimes));
}

}  // namespace
}  // namespace headrace::testing
