#include "backends/cuda/runtime/pointer.cuh"

#include "backends/cuda/runtime/status.cuh"

namespace headrace::cuda {
namespace {

const char* memory_name(cudaMemoryType type) {
  switch (type) {
    case cudaMemoryTypeDevice:
      return "memory of";
    case cudaMemoryTypeManaged:
      return "managed memory of";
    case cudaMemoryTypeHost:
      return "pinned memory of";
    default:
      return "host memory, not of";
  }
}

}  // namespace

Status check_pointer(const char* name, const void* data, int device_id) {
  if (data == nullptr) return std::nullopt;
  cudaPointerAttributes attributes{};
  HEADRACE_TRY(cuda_status(cudaPointerGetAttributes(&attributes, data),
                           "asking where {}.data={} lies", name, data));
  const bool is_elsewhere =
      attributes.type == cudaMemoryTypeDevice && attributes.device != device_id;
  if (attributes.type != cudaMemoryTypeUnregistered && !is_elsewhere) return std::nullopt;
  return invalid_argument(
      "{}.data={}: is {} cuda:{}, and must be memory of cuda:{} as the tensors say; copy {} there "
      "(nothing is moved for you) or set its device",
      name, data, memory_name(attributes.type), is_elsewhere ? attributes.device : device_id,
      device_id, name);
}

}  // namespace headrace::cuda
