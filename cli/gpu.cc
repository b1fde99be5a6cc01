#include "gpu.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>
#include <vector>

#include "headrace/headrace.hpp"

namespace headrace::cli {
namespace {

void require(cudaError_t error, const std::string& doing) {
  if (error == cudaSuccess) return;
  throw Error(error == cudaErrorMemoryAllocation ? HEADRACE_OUT_OF_MEMORY : HEADRACE_DEVICE_ERROR,
              std::string(cudaGetErrorName(error)) + " while " + doing);
}

}  // namespace

std::string gpu_versions() {
  int driver = 0, runtime = 0;
  require(cudaDriverGetVersion(&driver), "querying the driver's version");
  require(cudaRuntimeGetVersion(&runtime), "querying the runtime's version");
  const auto text = [](int version) {
    return std::to_string(version / 1000) + '.' + std::to_string(version % 1000 / 10);
  };
  return "driver " + text(driver) + ", runtime " + text(runtime);
}

struct Gpu::State {
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  void* evictor = nullptr;
  std::size_t evictor_bytes = 0;
  std::vector<void*> blocks;
};

Gpu::Gpu(int device_id) : state_(std::make_unique<State>()) {
  State& s = *state_;
  int l2_bytes = 0;
  require(cudaSetDevice(device_id), "setting the current device");
  require(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device_id),
          "querying the L2 size");
  require(cudaStreamCreateWithFlags(&s.stream, cudaStreamNonBlocking), "creating a stream");
  require(cudaEventCreate(&s.begin), "creating an event");
  require(cudaEventCreate(&s.end), "creating an event");
  s.evictor_bytes = 2 * static_cast<std::size_t>(std::max(l2_bytes, 1 << 20));
  require(cudaMalloc(&s.evictor, s.evictor_bytes), "allocating twice the L2 size");
}

Gpu::Gpu(Gpu&&) noexcept = default;
Gpu& Gpu::operator=(Gpu&&) noexcept = default;

Gpu::~Gpu() {
  if (state_ == nullptr) return;
  release();
  cudaFree(state_->evictor);
  cudaEventDestroy(state_->begin);
  cudaEventDestroy(state_->end);
  cudaStreamDestroy(state_->stream);
}

void* Gpu::allocate(std::size_t bytes) {
  void* data = nullptr;
  require(cudaMalloc(&data, std::max<std::size_t>(bytes, 1)),
          "allocating " + std::to_string(bytes) + " bytes of device memory");
  state_->blocks.push_back(data);
  return data;
}

void* Gpu::copy_of(const void* host, std::size_t bytes) {
  void* data = allocate(bytes);
  require(cudaMemcpy(data, host, bytes, cudaMemcpyHostToDevice), "copying to the device");
  return data;
}

void Gpu::write(void* to, const void* host, std::size_t bytes) {
  require(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, state_->stream),
          "enqueueing a copy to the device");
  require(cudaStreamSynchronize(state_->stream), "copying to the device");
}

void Gpu::read(void* host, const void* from, std::size_t bytes) {
  require(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, state_->stream),
          "enqueueing a copy from the device");
  require(cudaStreamSynchronize(state_->stream), "copying from the device");
}

void Gpu::release() {
  for (void* data : state_->blocks) cudaFree(data);
  state_->blocks.clear();
}

void Gpu::copy(void* to, const void* from, std::size_t bytes, void* stream) {
  require(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream)),
      "enqueueing a copy");
}

void* Gpu::stream() const { return state_->stream; }

void Gpu::evict() {
  require(cudaMemsetAsync(state_->evictor, 0, state_->evictor_bytes, state_->stream),
          "flushing the L2");
}

double Gpu::time(const std::function<void(void*)>& enqueue, bool evicts) {
  State& s = *state_;
  if (evicts) evict();
  require(cudaEventRecord(s.begin, s.stream), "recording an event");
  enqueue(s.stream);
  require(cudaEventRecord(s.end, s.stream), "recording an event");
  require(cudaEventSynchronize(s.end), "synchronizing with the calls");
  float milliseconds = 0;
  require(cudaEventElapsedTime(&milliseconds, s.begin, s.end), "reading the elapsed time");
  return milliseconds * 1e-3;
}

}  // namespace headrace::cli
