// Any machine: no target region.
#include "backends/cpu/simd/vec_scalar.h"
#include "backends/cpu/sparq/sparq-inl.h"

namespace headrace::cpu::scalar {
extern const SparqOps kSparqOps;
const SparqOps kSparqOps = SparqKernels<Vec>::make("scalar", 0);
}  // namespace headrace::cpu::scalar
