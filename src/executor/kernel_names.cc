#include "executor/kernel_names.h"

#include "backends/cpu/elementwise/elementwise.h"
#include "backends/cpu/gemm/gemm.h"
#include "backends/cuda/gemm/gemm.h"
#include "base/error.h"

namespace headrace {

std::string product_kernel(const DeviceInfo& device, WeightType weights, std::int64_t num_tokens) {
  if (device.device_type == HEADRACE_CUDA)
    return std::string(cuda::name_of(cuda::product_kernel(device.sm, num_tokens)));
  return cpu::product_kernel(device.cpu_isa, weights);
}

std::string elementwise_kernel(const DeviceInfo& device, std::string_view name) {
  if (device.device_type == HEADRACE_CUDA) return format_text("cuda_{}", name);
  return format_text("cpu_{}_{}", cpu::elementwise_ops(device).name, name);
}

}  // namespace headrace
