#include "backends/cuda/backend.h"
#include "executor/common.h"

namespace headrace {

Result<std::unique_ptr<Device>> make_device(const DeviceInfo& info) {
  if (info.device_type == HEADRACE_CUDA) return cuda::make_device(info.device_id);
  return make_host_device(info);
}

Result<std::unique_ptr<Executor>> make_executor(Device& device, MatmulMode mode) {
  if (device.info().device_type == HEADRACE_CUDA) return make_cuda_executor(device, mode);
  return make_cpu_executor(device, mode);
}

}  // namespace headrace
