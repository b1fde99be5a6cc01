#include "backends/cuda/runtime/operator_device.cuh"

#include "backends/cuda/backend.h"
#include "backends/cuda/common/constants.h"

namespace headrace::cuda {

Status check_operator_device(const char* name, int device_id) {
  Result<DeviceInfo> device = device_info(device_id);
  if (!device.ok()) return std::move(device.failure());
  if (device.value().sm >= kMinSm) return std::nullopt;
  return unsupported("{} needs a GPU of sm{} or newer, and cuda:{} is an sm{} ({})", name, kMinSm,
                     device_id, device.value().sm, device.value().name);
}

}  // namespace headrace::cuda
