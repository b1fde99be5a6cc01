// Host overhead of a C++ call on a GPU (bf16, causal, [batch 1, seqlen 128, num_heads 16, head_dim
// 128]), and GPU time per call in a CUDA graph of 100. Microseconds per call: minimum and median of
// many rounds. Exits with 1 if the minimum of a row exceeds its limit.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

#include "headrace/headrace.hpp"
#include "host/idle_plan.h"
#include "host/rows.h"

namespace {

using namespace headrace;
using namespace headrace::bench;

void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorName(error));
  std::exit(2);
}

// Zeroed device memory.
void* memory_of(std::size_t bytes) {
  void* data = nullptr;
  must(cudaMalloc(&data, bytes), "cudaMalloc");
  must(cudaMemset(data, 0, bytes), "cudaMemset");
  return data;
}

constexpr std::int64_t kSeqlen = 128, kHeads = 16, kDim = 128;
constexpr std::size_t kBytes = kSeqlen * kHeads * kDim * 2;

TensorView tensor() {
  TensorView x(memory_of(kBytes), DType::bf16, {1, kSeqlen, kHeads, kDim});
  x.device_type = HEADRACE_CUDA;
  return x;
}

// Synchronizes after `calls` calls: a full stream queue would add GPU time.
template <class Body>
bool is_enqueued_within(double limit, const char* what, cudaStream_t stream, Body body) {
  constexpr int kCalls = 50;
  return is_row_within(limit, what, [&] {
    const auto start = Clock::now();
    for (int i = 0; i < kCalls; ++i) body();
    const double taken = microseconds_since(start) / kCalls;
    must(cudaStreamSynchronize(stream), "synchronizing with the calls");
    return taken;
  });
}

// GPU microseconds per call, in a graph of many calls.
template <class Body>
bool is_in_graph_within(double limit, const char* what, cudaStream_t stream, Body body) {
  constexpr int kCalls = 100;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  must(cudaEventCreate(&begin), "cudaEventCreate");
  must(cudaEventCreate(&end), "cudaEventCreate");
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
       "beginning the graph capture");
  for (int i = 0; i < kCalls; ++i) body();
  must(cudaStreamEndCapture(stream, &graph), "ending the graph capture");
  must(cudaGraphInstantiate(&replay, graph), "instantiating the graph");
  return is_row_within(limit, what, [&] {
    float milliseconds = 0;
    must(cudaEventRecord(begin, stream), "cudaEventRecord");
    must(cudaGraphLaunch(replay, stream), "cudaGraphLaunch");
    must(cudaEventRecord(end, stream), "cudaEventRecord");
    must(cudaEventSynchronize(end), "synchronizing with the graph");
    must(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
    return 1e3 * static_cast<double>(milliseconds) / kCalls;
  });
}

int measure() {
  if (num_cuda_devices() == 0) {
    std::fprintf(stderr, "no CUDA device\n");
    return 2;
  }
  const AttentionTensors tensors{.q = tensor(), .k = tensor(), .v = tensor(), .out = tensor()};
  const AttentionOptions causal{.causal = Causal::bottom_right};
  const DeviceInfo device = cuda_info(0);
  const Problem problem(tensors, causal);
  const Plan plan = plan_attention(problem, device), idle(make_idle_plan(problem, device));
  const Workspace workspace{memory_of(plan.workspace_bytes() + 1), plan.workspace_bytes()};
  cudaStream_t stream = nullptr;
  must(cudaStreamCreate(&stream), "cudaStreamCreate");
  std::printf("headrace %s, %s, %s\n", version(), device.name, plan.kernel());
  std::printf("%-40s %8s %8s %8s\n", "us per call", "min", "median", "limit");
  const auto run = [&] { plan.run(tensors, workspace, {}, stream); };
  bool is_fast = is_enqueued_within(5, "run of a cached plan", stream, run);
  is_enqueued_within(kNoLimit, "run of a cached plan, without its kernel", stream,
                     [&] { idle.run(tensors, workspace, {}, stream); });
  is_within(kNoLimit, "plan_attention", 100, [&] { (void)plan_attention(problem, device); });
  is_fast &= is_in_graph_within(6, "GPU time of a call in a graph of 100", stream, run);
  return is_fast ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return measure();
  } catch (const Error& error) {  // no driver, for example
    std::fprintf(stderr, "headrace_bench_host_cuda: %s\n", error.what());
    return 2;
  }
}
