// Workspace of one call, for callers that pass none.
#include <cuda_runtime_api.h>

#include "backends/cuda/backend.h"
#include "backends/cuda/runtime/device.cuh"
#include "backends/cuda/runtime/status.cuh"

namespace headrace::cuda {

void FreeScratch::operator()(void* data) const {
  const DeviceScope scope(device_id);  // a null stream is the default stream of the current device
  (void)cudaFreeAsync(data, static_cast<cudaStream_t>(stream));
}

Result<Scratch> allocate_scratch(std::size_t bytes, int device_id, Stream stream) {
  const DeviceScope scope(device_id);
  if (scope.status()) return *scope.status();
  void* data = nullptr;
  if (Status bad = cuda_status(cudaMallocAsync(&data, bytes, static_cast<cudaStream_t>(stream)),
                               "allocating a workspace of {} bytes on cuda:{}", bytes, device_id))
    return std::move(*bad);
  return Scratch(data, {device_id, stream});
}

}  // namespace headrace::cuda
