#include <immintrin.h>
#include <string.h>

#include "backends/cpu/simd/element.h"
#include "backends/cpu/simd/vec_probe.h"

// clang-format off
#include "backends/cpu/simd/target_avx2.h"
#include "backends/cpu/simd/vec_avx2.h"
#include "backends/cpu/simd/vec_probe-inl.h"
// clang-format on

namespace headrace::cpu::avx2 {
extern const VecProbe kProbe;
const VecProbe kProbe = ProbeOf<Vec>::make("avx2", HEADRACE_ISA_AVX2);
}  // namespace headrace::cpu::avx2

#include "backends/cpu/simd/target_end.h"
