// 64-bit Arm: NEON is always there, no target region.
#include "backends/cpu/simd/vec_neon.h"
#include "backends/cpu/softmax/softmax-inl.h"

namespace headrace::cpu::neon {
extern const SoftmaxOps kSoftmaxOps;
const SoftmaxOps kSoftmaxOps = SoftmaxKernels<Vec>::make("neon", HEADRACE_ISA_NEON);
}  // namespace headrace::cpu::neon
