// The last forward kernel of the CUDA list.
#pragma once

#include "core/kernel.h"

namespace headrace::cuda::simple::fwd {

extern const Kernel kForwardKernel;  // "cuda_simple"

// Empty on every GPU from sm_80.
std::string refuses_device(const Problem& p, const DeviceInfo& device);

}  // namespace headrace::cuda::simple::fwd
