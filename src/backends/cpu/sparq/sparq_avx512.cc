#include <immintrin.h>
#include <string.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cpu/simd/element.h"
#include "backends/cpu/sparq/select.h"
#include "backends/cpu/sparq/sparq.h"
#include "core/quantise.h"

// Nothing above this line is compiled for the instruction set, everything below is.
// clang-format off
#include "backends/cpu/simd/target_avx512.h"
#define HEADRACE_AVX512_NAMESPACE avx512
#include "backends/cpu/simd/vec_avx512.h"
#include "backends/cpu/sparq/sparq-inl.h"
// clang-format on

namespace headrace::cpu::avx512 {
extern const SparqOps kSparqOps;
const SparqOps kSparqOps = SparqKernels<Vec>::make("avx512", HEADRACE_ISA_AVX512);
}  // namespace headrace::cpu::avx512

#include "backends/cpu/simd/target_end.h"
