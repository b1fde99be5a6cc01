// The flash kernels as rows of the CPU list.
#pragma once

#include "core/kernel.h"

namespace headrace::cpu::flash {

extern const Kernel kScalarKernel;
#if defined(__x86_64__)
extern const Kernel kAvx2Kernel;
extern const Kernel kAvx512Kernel;
extern const Kernel kAvx512Bf16Kernel;
#endif

}  // namespace headrace::cpu::flash
