// 64-bit Arm: NEON is always there, no target region.
#include "backends/cpu/simd/vec_neon.h"
#include "backends/cpu/sparq/sparq-inl.h"

namespace headrace::cpu::neon {
extern const SparqOps kSparqOps;
const SparqOps kSparqOps = SparqKernels<Vec>::make("neon", HEADRACE_ISA_NEON);
}  // namespace headrace::cpu::neon
