// What a launch costs, and the link to the host.
#include "backends/cuda/runtime/launch.cuh"
#include "probes/cuda/bench.h"

namespace headrace::probes::gpu {
namespace {

using headrace::cuda::cuda_status;
using headrace::cuda::launch;
using headrace::cuda::LaunchShape;

constexpr int kLaunches = 256;
constexpr std::size_t kCopyBytes = 64 << 20;
constexpr LaunchShape kEmpty = {.name = "an empty kernel", .grid = dim3(1), .block = dim3(32)};

// Stores nothing, as no number is negative: a check takes kernels without a store for broken ones.
__global__ void empty_kernel(int number, int* sink) {
  if (number < 0) *sink = number;
}

Status launch_many(cudaStream_t stream) {
  for (int i = 0; i < kLaunches; ++i)
    HEADRACE_TRY(launch(kEmpty, stream, empty_kernel, i, nullptr));
  return std::nullopt;
}

void add_graph(Bench& bench) {
  headrace::cuda::Graph graph;
  bench.run([&](std::int64_t, KernelSpan*, cudaStream_t stream) -> Status {
    const int device_id = bench.device().device_id;
    HEADRACE_TRY(headrace::cuda::begin_capture(device_id, stream));
    Status bad = launch_many(stream);
    auto made = headrace::cuda::end_capture(device_id, stream);
    if (bad) return bad;
    if (!made.ok()) return std::move(made.failure());
    graph = std::move(made.value());
    return std::nullopt;
  });
  bench.add_without_span({CeilingKind::latency, "launch", "in a graph"}, kLaunches, 0,
                         [&](std::int64_t amount, KernelSpan*, cudaStream_t stream) -> Status {
                           for (std::int64_t i = 0; i < amount; ++i)
                             HEADRACE_TRY(headrace::cuda::launch_graph(graph, stream));
                           return std::nullopt;
                         });
}

}  // namespace

void add_launches(Bench& bench) {
  bench.add_without_span({CeilingKind::latency, "launch", "eager"}, kLaunches, 0,
                         [](std::int64_t amount, KernelSpan*, cudaStream_t stream) -> Status {
                           for (std::int64_t i = 0; i < amount; ++i)
                             HEADRACE_TRY(launch_many(stream));
                           return std::nullopt;
                         });
  add_graph(bench);
  void* host = bench.allocate_pinned(kCopyBytes);
  void* device = bench.allocate(kCopyBytes);
  const auto add_copy = [&](const char* operation, void* to, const void* from,
                            cudaMemcpyKind kind) {
    bench.add_without_span(
        {CeilingKind::bandwidth, "PCIe", operation}, kCopyBytes, kCopyBytes,
        [=](std::int64_t amount, KernelSpan*, cudaStream_t stream) -> Status {
          for (std::int64_t i = 0; i < amount; ++i)
            HEADRACE_TRY(cuda_status(cudaMemcpyAsync(to, from, kCopyBytes, kind, stream),
                                     "copying between host and device"));
          return std::nullopt;
        });
  };
  add_copy("to device", device, host, cudaMemcpyHostToDevice);
  add_copy("from device", host, device, cudaMemcpyDeviceToHost);
}

}  // namespace headrace::probes::gpu
