// Any machine: no target region.
#include "backends/cpu/sampling/sampling-inl.h"
#include "backends/cpu/simd/vec_scalar.h"

namespace headrace::cpu::scalar {
extern const SamplingOps kSamplingOps;
const SamplingOps kSamplingOps = SamplingKernels<Vec>::make("scalar", 0);
}  // namespace headrace::cpu::scalar
