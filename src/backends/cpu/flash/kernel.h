// The flash kernels as rows of the CPU lists.
#pragma once

#include "core/kernel.h"

namespace headrace::cpu::flash {

extern const Kernel kScalarKernel;
extern const Kernel kScalarBackwardKernel;
#if defined(__x86_64__)
extern const Kernel kAvx2Kernel;
extern const Kernel kAvx512Kernel;
extern const Kernel kAvx512Bf16Kernel;
extern const Kernel kAvx2BackwardKernel;
extern const Kernel kAvx512BackwardKernel;
#endif

}  // namespace headrace::cpu::flash
