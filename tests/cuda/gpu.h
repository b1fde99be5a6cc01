// Shared by the GPU tests: device memory, and skipping without a GPU.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace headrace::testing {

// Of the compute capability that the library sees: HEADRACE_CUDA_SM may cap it.
inline bool has_gpu(int oldest_sm) {
  int count = 0, major = 0, minor = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return false;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
  const char* cap = std::getenv("HEADRACE_CUDA_SM");
  const int sm = 10 * major + minor;
  return (cap == nullptr || *cap == 0 ? sm : std::min(sm, std::atoi(cap))) >= oldest_sm;
}

#define HEADRACE_NEEDS_GPU(sm) \
  if (!::headrace::testing::has_gpu(sm)) GTEST_SKIP() << "no GPU of sm" << (sm) << " or newer"

#define HEADRACE_EXPECT_CUDA(call) EXPECT_EQ(cudaGetErrorName(call), std::string("cudaSuccess"))

// An array on the device, filled from the host and read back.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& host) : count_(host.size()) {
    HEADRACE_EXPECT_CUDA(cudaMalloc(&data_, count_ * sizeof(T)));
    HEADRACE_EXPECT_CUDA(
        cudaMemcpy(data_, host.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
    // A copy from pageable memory may return when the data is only staged, and non-blocking streams
    // could read before it is on the device.
    HEADRACE_EXPECT_CUDA(cudaDeviceSynchronize());
  }
  OnDevice(const OnDevice&) = delete;
  ~OnDevice() { cudaFree(data_); }
  T* data() const { return static_cast<T*>(data_); }
  std::vector<T> read() const {
    std::vector<T> host(count_);
    HEADRACE_EXPECT_CUDA(
        cudaMemcpy(host.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }

 private:
  void* data_ = nullptr;
  std::size_t count_;
};

}  // namespace headrace::testing
