// Any machine: no target region.
#include "backends/cpu/simd/vec_scalar.h"
#include "backends/cpu/softmax/softmax-inl.h"

namespace headrace::cpu::scalar {
extern const SoftmaxOps kSoftmaxOps;
const SoftmaxOps kSoftmaxOps = SoftmaxKernels<Vec>::make("scalar", 0);
}  // namespace headrace::cpu::scalar
