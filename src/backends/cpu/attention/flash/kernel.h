// The flash kernels as rows of the CPU lists.
#pragma once

#include "core/kernel.h"

namespace headrace::cpu::flash {

// Those of other machines are declared and nothing else.
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
