#include "backends/cuda/runtime/launch.cuh"

#include <atomic>

#include "backends/cuda/runtime/device.cuh"

namespace headrace::cuda {
namespace {

std::string shape_text(const LaunchShape& s) {
  return format_text(
      "launching {} with grid {}x{}x{}, block {}, cluster {}, {} bytes of shared "
      "memory",
      s.name, s.grid.x, s.grid.y, s.grid.z, s.block.x, s.cluster, s.smem_bytes);
}

}  // namespace

Status launch_kernel(const LaunchShape& shape, cudaStream_t stream, const void* kernel,
                     const void** arguments) {
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.smem_bytes;
  config.stream = stream;
  config.attrs = attributes;
  if (shape.cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs].val.clusterDim = {shape.cluster, 1, 1};
    ++config.numAttrs;
  }
  if (shape.use_pdl) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs].val.programmaticStreamSerializationAllowed = 1;
    ++config.numAttrs;
  }
  // The runtime reads the arguments, and takes their addresses without const.
  const cudaError_t error = cudaLaunchKernelExC(&config, kernel, const_cast<void**>(arguments));
  if (error == cudaSuccess) return std::nullopt;
  return cuda_failure(error, shape_text(shape));
}

static_assert(kMaxDevices <= 64);

Status allow_smem(const LaunchShape& shape, const void* kernel, AllowedSmem& allowed) {
  int device_id = 0;
  HEADRACE_TRY(cuda_status(cudaGetDevice(&device_id), "asking for the current device"));
  const std::uint64_t bit = std::uint64_t{1} << device_id;
  const std::atomic_ref devices(allowed.devices);
  if ((devices.load(std::memory_order_relaxed) & bit) != 0) return std::nullopt;
  const auto bytes = static_cast<int>(shape.smem_bytes);
  HEADRACE_TRY(
      cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                  "allowing {} {} bytes of shared memory", shape.name, bytes));
  devices.fetch_or(bit, std::memory_order_relaxed);
  return std::nullopt;
}

}  // namespace headrace::cuda
