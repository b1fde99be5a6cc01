// 64-bit Arm: NEON is always there, no target region.
#include "backends/cpu/elementwise/elementwise-inl.h"
#include "backends/cpu/simd/vec_neon.h"

namespace headrace::cpu::neon {
extern const ElementwiseOps kElementwiseOps;
const ElementwiseOps kElementwiseOps = ElementwiseKernels<Vec>::make("neon", HEADRACE_ISA_NEON);
}  // namespace headrace::cpu::neon
