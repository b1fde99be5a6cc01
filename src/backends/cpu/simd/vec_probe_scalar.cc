#include "backends/cpu/simd/vec_probe-inl.h"
#include "backends/cpu/simd/vec_scalar.h"

namespace headrace::cpu::scalar {
extern const VecProbe kProbe;
const VecProbe kProbe = ProbeOf<Vec>::make("scalar", 0);
}  // namespace headrace::cpu::scalar
