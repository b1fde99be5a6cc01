// Memory of a CUDA device, page-locked memory of the host, and copies between them.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "backends/cuda/backend.h"
#include "backends/cuda/runtime/device.cuh"
#include "backends/cuda/runtime/status.cuh"
#include "runtime/device_wait.h"

namespace headrace::cuda {
namespace {

class CudaDevice final : public Device {
 public:
  using Device::Device;

  Buffer allocate(std::size_t bytes) override {
    const auto allocate_device = [](void** data, std::size_t n) { return cudaMalloc(data, n); };
    return allocate_by(allocate_device, cudaFree, bytes);
  }

  Buffer allocate_host(std::size_t bytes) override {
    const auto allocate_pinned = [](void** data, std::size_t n) {
      return cudaHostAlloc(data, n, cudaHostAllocPortable);
    };
    return allocate_by(allocate_pinned, cudaFreeHost, bytes);
  }

  Buffer upload(const void* data, std::size_t bytes) override {
    Buffer buffer = allocate(bytes);
    if (buffer.data() == nullptr || bytes == 0) return buffer;
    const DeviceScope scope(info().device_id);
    // A stream of the calling thread. Work of others does not wait for it, so the bytes have to be
    // there when this returns: a copy of pageable memory alone may end later.
    if (cudaMemcpyAsync(buffer.data(), data, bytes, cudaMemcpyHostToDevice, cudaStreamPerThread) ==
            cudaSuccess &&
        cudaStreamSynchronize(cudaStreamPerThread) == cudaSuccess)
      return buffer;
    (void)cudaGetLastError();
    return {};
  }

  // The direction of each copy follows from its addresses.
  Status copy(std::span<const ByteCopy> copies, Stream stream) override {
    const DeviceScope scope(info().device_id);
    if (scope.status()) return scope.status();
    for (const ByteCopy& c : copies)
      HEADRACE_TRY(cuda_status(cudaMemcpyAsync(c.to, c.from, c.bytes, cudaMemcpyDefault,
                                               static_cast<cudaStream_t>(stream)),
                               "copying {} bytes on cuda:{}", c.bytes, info().device_id));
    return std::nullopt;
  }

  Status download(const void* from, void* to, std::size_t bytes, Stream stream) override {
    const DeviceScope scope(info().device_id);
    if (scope.status()) return scope.status();
    HEADRACE_TRY(cuda_status(
        cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, static_cast<cudaStream_t>(stream)),
        "copying {} bytes from cuda:{} to the host", bytes, info().device_id));
    return synchronise(stream);
  }

  Status synchronise(Stream stream) override {
    const DeviceScope scope(info().device_id);
    if (scope.status()) return scope.status();
    const DeviceWait wait;
    return cuda_status(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)),
                       "waiting for the stream {} of cuda:{}", stream, info().device_id);
  }

  std::size_t free_bytes() override {
    const DeviceScope scope(info().device_id);
    std::size_t free = 0, total = 0;
    if (!scope.status() && cudaMemGetInfo(&free, &total) == cudaSuccess) return free;
    (void)cudaGetLastError();
    return SIZE_MAX;
  }

 private:
  // Empty where CUDA has no memory left.
  template <class Allocate>
  Buffer allocate_by(Allocate allocate, cudaError_t (*release)(void*), std::size_t bytes) {
    const int device_id = info().device_id;
    const DeviceScope scope(device_id);
    void* data = nullptr;
    if (scope.status() || allocate(&data, std::max<std::size_t>(bytes, 1)) != cudaSuccess) {
      (void)cudaGetLastError();
      return {};
    }
    const auto free = [device_id, release](std::byte* memory) {
      const DeviceScope scope_of_free(device_id);
      (void)release(memory);
    };
    return {std::shared_ptr<std::byte>(static_cast<std::byte*>(data), free), bytes};
  }
};

}  // namespace

Result<std::unique_ptr<Device>> make_device(int device_id) {
  Result<DeviceInfo> info = device_info(device_id);
  if (!info.ok()) return std::move(info.failure());
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(info.value()));
}

}  // namespace headrace::cuda
