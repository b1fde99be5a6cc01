// Kernel launches: the message of a failed one, and that the next one works.
#include <chrono>
#include <cstdio>

#include "backends/cuda/runtime/device.cuh"
#include "backends/cuda/runtime/driver.cuh"
#include "backends/cuda/runtime/launch.cuh"
#include "backends/cuda/runtime/tensor_map.cuh"
#include "cuda/gpu.h"

namespace headrace::cuda {
namespace {

using headrace::testing::OnDevice;

__global__ void count_threads(int* count) { atomicAdd(count, 1); }

TEST(Launch, FailureNamesErrorAndKernelAndIsCleared) {
  HEADRACE_NEEDS_GPU(80);
  const OnDevice<int> count(std::vector<int>(1));
  const LaunchShape large{.name = "count_threads", .grid = dim3(3), .block = dim3(2048)};
  const Status bad = launch(large, nullptr, count_threads, count.data());
  ASSERT_TRUE(bad.has_value());
  EXPECT_EQ(bad->code, ErrorCode::device_error);
  for (const char* part :
       {"cudaErrorInvalid", "launching count_threads", "grid 3x1x1", "block 2048"})
    EXPECT_NE(bad->message.find(part), std::string::npos) << part << " in: " << bad->message;
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  const LaunchShape good{.name = "count_threads", .grid = dim3(3), .block = dim3(64)};
  EXPECT_FALSE(launch(good, nullptr, count_threads, count.data()));
  EXPECT_EQ(count.read()[0], 3 * 64);
}

TEST(Launch, TakesClustersAndOverlap) {
  HEADRACE_NEEDS_GPU(90);
  const OnDevice<int> count(std::vector<int>(1));
  const LaunchShape shape{
      .name = "count_threads", .grid = dim3(8), .block = dim3(32), .cluster = 2, .use_pdl = true};
  for (int i = 0; i < 3; ++i) {
    const Status bad = launch(shape, nullptr, count_threads, count.data());
    EXPECT_FALSE(bad) << bad->message;
  }
  EXPECT_EQ(count.read()[0], 3 * 8 * 32);
}

TEST(DeviceScope, RestoresAThreadWithoutContext) {
  HEADRACE_NEEDS_GPU(80);
  const Driver& cu = *driver().value();
  CUcontext before = nullptr, inside = nullptr, after = nullptr;
  cu.ctx_get_current(&before);
  cu.ctx_set_current(nullptr);
  {
    const DeviceScope scope(0);
    EXPECT_FALSE(scope.status());
    cu.ctx_get_current(&inside);
  }
  cu.ctx_get_current(&after);
  EXPECT_NE(inside, nullptr);
  EXPECT_EQ(after, nullptr);
  cu.ctx_set_current(before);
}

// Prints the host cost of encoding and moving a tensor map; checks nothing.
TEST(TensorMap, CostOfEncoding) {
  HEADRACE_NEEDS_GPU(90);
  constexpr int kTimes = 10000;
  const OnDevice<float> memory(std::vector<float>(1 << 16));
  const TensorMapSpec spec{.rank = 4, .sizes = {64, 64, 4, 4}, .box = {64, 64, 1, 1}};
  const std::int64_t strides[] = {1, 64, 4096, 16384};
  const auto nanoseconds = [&](auto body) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kTimes; ++i) body();
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
    return time.count() / kTimes;
  };
  TensorMap map{};
  const double encode =
      nanoseconds([&] { EXPECT_FALSE(encode_tensor_map(spec, memory.data(), strides, map)); });
  const double move = nanoseconds([&] { EXPECT_FALSE(move_tensor_map(map, memory.data() + 64)); });
  std::printf("tensor map: encode %.0f ns, new address %.0f ns\n", encode, move);
}

}  // namespace
}  // namespace headrace::cuda
