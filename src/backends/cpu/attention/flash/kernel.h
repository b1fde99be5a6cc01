// The flash kernels, for the CPU's kernel lists.
#pragma once

#include "core/kernel.h"

namespace headrace::cpu::flash {

// Kernels for other architectures are only declared.
extern const Kernel kScalarKernel;
extern const Kernel kScalarBackwardKernel;
extern const Kernel kAvx2Kernel;
extern const Kernel kAvx512Kernel;
extern const Kernel kAvx512Bf16Kernel;
extern const Kernel kAvx2BackwardKernel;
extern const Kernel kAvx512BackwardKernel;
extern const Kernel kAvx512Bf16BackwardKernel;
extern const Kernel kNeonKernel;
extern const Kernel kNeonBackwardKernel;

}  // namespace headrace::cpu::flash
