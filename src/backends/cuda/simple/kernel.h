// The last kernel of the CUDA list, and kernels that only tests and benchmarks ask for.
#pragma once

#include <span>

#include "core/kernel.h"

namespace headrace::cuda::simple {

extern const Kernel kForwardKernel;  // "cuda_simple"

// "cuda_teaching" and "cuda_materialised": the idea of this library in 100 lines, and what it
// replaces. Not in the list: they take plain problems alone.
std::span<const Kernel> baseline_kernels();

}  // namespace headrace::cuda::simple
