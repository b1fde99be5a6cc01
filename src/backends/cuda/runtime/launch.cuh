// Kernel launches with cluster and programmatic dependent launch, and errors that name the launch.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "backends/cuda/runtime/kernel_image.h"
#include "backends/cuda/runtime/status.cuh"
#include "core/kernel.h"

namespace headrace::cuda {

struct LaunchShape {
  const char* name = nullptr;  // in errors: "cuda_simple<bf16>"
  dim3 grid = {}, block = {};
  unsigned smem_bytes = 0;  // dynamic; above 48 KiB call allow_smem() first
  unsigned cluster = 1;     // CTAs of a cluster, along x
  bool use_pdl = false;     // may start while the kernel before it on the stream ends (PDL); it
                            // then waits by itself with griddepcontrol.wait
};

// `arguments`: addresses, one for each parameter of `kernel`.
Status launch_kernel(const LaunchShape& shape, cudaStream_t stream, const void* kernel,
                     const void** arguments);
// On the current device.
Status allow_smem(const LaunchShape& shape, const void* kernel, AllowedSmem& allowed);

template <class... Params>
Status launch(const LaunchShape& shape, cudaStream_t stream, void (*kernel)(Params...),
              const std::type_identity_t<Params>&... args) {
  const void* arguments[] = {&args..., nullptr};
  return launch_kernel(shape, stream, reinterpret_cast<const void*>(kernel), arguments);
}
template <class... Params>
Status allow_smem(const LaunchShape& shape, void (*kernel)(Params...), AllowedSmem& allowed) {
  return allow_smem(shape, reinterpret_cast<const void*>(kernel), allowed);
}

// `shape`: its grid, cluster and use_pdl; the rest is that of the image.
template <class... Params>
Status launch(KernelImage<Params...>& image, LaunchShape shape, Stream stream,
              const std::type_identity_t<Params>&... args) {
  shape.name = image.name;
  shape.block = dim3(image.threads);
  shape.smem_bytes = image.smem_bytes;
  HEADRACE_TRY(allow_smem(shape, image.function, image.allowed));
  return launch(shape, static_cast<cudaStream_t>(stream), image.function, args...);
}

}  // namespace headrace::cuda
