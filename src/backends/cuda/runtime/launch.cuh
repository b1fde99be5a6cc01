// Kernel launches with cluster and programmatic dependent launch, and errors that name the launch.
#pragma once

#include <cuda_runtime.h>

#include <atomic>

#include "backends/cuda/runtime/device.cuh"
#include "backends/cuda/runtime/status.cuh"

namespace headrace::cuda {

struct LaunchShape {
  const char* name;  // in errors: "cuda_simple<bf16>"
  dim3 grid, block;
  unsigned smem_bytes = 0;  // dynamic; above 48 KiB call allow_smem() first
  unsigned cluster = 1;     // CTAs of a cluster, along x
  bool use_pdl = false;     // may start while the kernel before it on the stream ends (PDL); it
                            // then waits by itself with griddepcontrol.wait
};

inline std::string shape_text(const LaunchShape& s) {
  return format_text(
      "launching {} with grid {}x{}x{}, block {}, cluster {}, {} bytes of shared "
      "memory",
      s.name, s.grid.x, s.grid.y, s.grid.z, s.block.x, s.cluster, s.smem_bytes);
}

template <class... Params, class... Args>
Status launch(const LaunchShape& shape, cudaStream_t stream, void (*kernel)(Params...),
              Args&&... args) {
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
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, static_cast<Args&&>(args)...);
  if (error == cudaSuccess) return std::nullopt;
  return cuda_failure(error, shape_text(shape));
}

// Devices on which a kernel has been allowed more than 48 KiB of dynamic shared memory. One static
// object per kernel, so that the driver is called once per device and not at every launch.
struct AllowedSmem {
  std::atomic<std::uint64_t> devices{0};  // bit i: cuda:i
};
static_assert(kMaxDevices <= 64);

// On the current device.
template <class... Params>
Status allow_smem(const LaunchShape& shape, void (*kernel)(Params...), AllowedSmem& allowed) {
  int device_id = 0;
  HEADRACE_TRY(cuda_status(cudaGetDevice(&device_id), "asking for the current device"));
  const std::uint64_t bit = std::uint64_t{1} << device_id;
  if ((allowed.devices.load(std::memory_order_relaxed) & bit) != 0) return std::nullopt;
  const auto bytes = static_cast<int>(shape.smem_bytes);
  HEADRACE_TRY(
      cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                  "allowing {} {} bytes of shared memory", shape.name, bytes));
  allowed.devices.fetch_or(bit, std::memory_order_relaxed);
  return std::nullopt;
}

}  // namespace headrace::cuda
