#include <immintrin.h>
#include <string.h>

#include "backends/cpu/simd/element.h"
#include "backends/cpu/simd/vec_probe.h"

// clang-format off
#include "backends/cpu/simd/target_avx512.h"
#define HEADRACE_AVX512_NAMESPACE avx512
#include "backends/cpu/simd/vec_avx512.h"
#include "backends/cpu/simd/vec_probe-inl.h"
// clang-format on

namespace headrace::cpu::avx512 {
extern const VecProbe kProbe;
const VecProbe kProbe = ProbeOf<Vec>::make("avx512", HEADRACE_ISA_AVX512);
}  // namespace headrace::cpu::avx512

#include "backends/cpu/simd/target_end.h"
