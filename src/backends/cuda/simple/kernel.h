// The last kernels of the CUDA lists, and kernels that only tests and benchmarks ask for.
#pragma once

#include <span>

#include "core/kernel.h"

namespace headrace::cuda::simple {

extern const Kernel kForwardKernel, kBackwardKernel;  // "cuda_simple"

// Empty on every GPU from sm_80.
std::string refuses_device(const Problem& p, const DeviceInfo& device);

// "cuda_teaching" and "cuda_materialised": the idea of this library in 100 lines, and what it
// replaces. Not in the list: they take plain problems alone.
std::span<const Kernel> baseline_kernels();

}  // namespace headrace::cuda::simple
