#include "backends/cuda/runtime/device.cuh"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>

#include "backends/cuda/backend.h"
#include "backends/cuda/runtime/driver.cuh"
#include "backends/cuda/runtime/status.cuh"
#include "core/device.h"

namespace headrace::cuda {
namespace {

Result<DeviceInfo> read_info(int device_id) {
  DeviceInfo device{};
  device.struct_size = sizeof device;
  device.device_type = HEADRACE_CUDA;
  device.device_id = device_id;
  int major = 0, minor = 0, l2_bytes = 0, smem_bytes = 0;
  const struct {
    cudaDeviceAttr attribute;
    int* value;
  } wanted[] = {{cudaDevAttrComputeCapabilityMajor, &major},
                {cudaDevAttrComputeCapabilityMinor, &minor},
                {cudaDevAttrMultiProcessorCount, &device.num_units},
                {cudaDevAttrL2CacheSize, &l2_bytes},
                {cudaDevAttrMaxSharedMemoryPerBlockOptin, &smem_bytes}};
  for (const auto& [attribute, value] : wanted) {
    if (Status bad =
            cuda_status(cudaDeviceGetAttribute(value, attribute, device_id),
                        "reading attribute {} of cuda:{}", static_cast<int>(attribute), device_id))
      return std::move(*bad);
  }
  device.sm = 10 * major + minor;
  device.l2_bytes = l2_bytes;
  device.smem_bytes = static_cast<std::uint32_t>(smem_bytes);
  cudaDeviceProp properties;
  if (Status bad = cuda_status(cudaGetDeviceProperties(&properties, device_id),
                               "reading the name of cuda:{}", device_id))
    return std::move(*bad);
  std::memcpy(device.name, properties.name,
              std::min(sizeof device.name - 1, std::strlen(properties.name)));
  return device;
}

}  // namespace

Result<int> num_devices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice) {
    (void)cudaGetLastError();
    return 0;
  }
  if (error != cudaSuccess) return cuda_failure(error, "counting the CUDA devices");
  return count;
}

Result<DeviceInfo> device_info(int device_id) {
  static std::mutex mutex;
  static std::optional<DeviceInfo> known[kMaxDevices];
  const std::lock_guard lock(mutex);
  if (device_id >= 0 && device_id < kMaxDevices && known[device_id])
    return capped_gpu(*known[device_id]);
  Result<int> count = num_devices();
  if (!count.ok()) return std::move(count.failure());
  if (device_id < 0 || device_id >= std::min(count.value(), kMaxDevices))
    return invalid_argument(
        "device_id={}: this process sees {} CUDA device{}; pass the number of one of them, from 0",
        device_id, count.value(), count.value() == 1 ? "" : "s");
  Result<DeviceInfo> device = read_info(device_id);
  if (!device.ok()) return device;
  known[device_id] = device.value();
  return capped_gpu(device.value());
}

DeviceScope::DeviceScope(int device_id) {
  Result<const Driver*> found = driver();
  if (!found.ok()) {
    status_ = std::move(found.failure());
    return;
  }
  const Driver& cu = *found.value();
  CUdevice current = -1;
  if (cu.ctx_get_current(&previous_context_) != CUDA_SUCCESS) previous_context_ = nullptr;
  if (previous_context_ != nullptr && cu.ctx_get_device(&current) == CUDA_SUCCESS &&
      current == device_id)
    return;
  status_ = cuda_status(cudaSetDevice(device_id), "making cuda:{} current", device_id);
  is_changed_ = !status_;
}

DeviceScope::~DeviceScope() {
  if (is_changed_) (void)driver().value()->ctx_set_current(previous_context_);
}

}  // namespace headrace::cuda
