#include "executor/kernel_names.h"

#include "backends/cpu/elementwise/elementwise.h"
#include "backends/cpu/gemm/gemm.h"
#include "backends/cuda/gemm/cublaslt.h"
#include "base/error.h"

namespace headrace {

bool is_by_cublaslt(MatmulMode mode, std::int64_t num_tokens, bool has_bias) {
  return mode == MatmulMode::fast && cuda::is_for_cublaslt(num_tokens, has_bias);
}

std::string product_kernel(const DeviceInfo& device, MatmulMode mode, WeightType weights,
                           std::int64_t num_tokens, bool has_bias) {
  if (device.device_type != HEADRACE_CUDA)
    return cpu::product_kernel(device.cpu_isa, weights, mode);
  if (is_by_cublaslt(mode, num_tokens, has_bias)) return std::string(cuda::kCublasLtName);
  return std::string(cuda::name_of(cuda::product_kernel(device.sm, num_tokens)));
}

bool has_swiglu(const DeviceInfo& device, MatmulMode mode, std::int64_t num_tokens, bool has_bias) {
  return device.device_type == HEADRACE_CUDA && !is_by_cublaslt(mode, num_tokens, has_bias);
}

bool has_norm(const DeviceInfo& device, std::int64_t num_tokens, std::int64_t columns) {
  return device.device_type == HEADRACE_CUDA && cuda::takes_norm(device.sm, num_tokens, columns);
}

bool has_append(const DeviceInfo& device, std::int64_t num_tokens, const KvShape& kv,
                std::int64_t rot_dim) {
  constexpr DType kDType = DType::bf16;  // of products on a GPU
  return device.device_type == HEADRACE_CUDA && kv.dtype == kDType && !kv.has_codes() &&
         cuda::takes_append(device.sm, num_tokens, kv.head_dim, kv.head_dim_v, rot_dim);
}

std::string elementwise_kernel(const DeviceInfo& device, std::string_view name) {
  if (device.device_type == HEADRACE_CUDA) return format_text("cuda_{}", name);
  return format_text("cpu_{}_{}", cpu::elementwise_ops(device).name, name);
}

}  // namespace headrace
