// Any machine: no target region.
#include "backends/cpu/elementwise/elementwise-inl.h"
#include "backends/cpu/simd/vec_scalar.h"

namespace headrace::cpu::scalar {
extern const ElementwiseOps kElementwiseOps;
const ElementwiseOps kElementwiseOps = ElementwiseKernels<Vec>::make("scalar", 0);
}  // namespace headrace::cpu::scalar
