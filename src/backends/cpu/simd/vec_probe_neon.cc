#include "backends/cpu/simd/vec_neon.h"
#include "backends/cpu/simd/vec_probe-inl.h"

namespace headrace::cpu::neon {
extern const VecProbe kProbe;
const VecProbe kProbe = ProbeOf<Vec>::make("neon", HEADRACE_ISA_NEON);
}  // namespace headrace::cpu::neon
