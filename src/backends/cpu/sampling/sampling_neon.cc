// 64-bit Arm: NEON is always there, no target region.
#include "backends/cpu/sampling/sampling-inl.h"
#include "backends/cpu/simd/vec_neon.h"

namespace headrace::cpu::neon {
extern const SamplingOps kSamplingOps;
const SamplingOps kSamplingOps = SamplingKernels<Vec>::make("neon", HEADRACE_ISA_NEON);
}  // namespace headrace::cpu::neon
