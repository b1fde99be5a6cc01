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
#include "backends/cpu/simd/target_avx2.h"
#include "backends/cpu/simd/vec_avx2.h"
#include "backends/cpu/sparq/sparq-inl.h"
// clang-format on

namespace headrace::cpu::avx2 {
extern const SparqOps kSparqOps;
const SparqOps kSparqOps = SparqKernels<Vec>::make("avx2", HEADRACE_ISA_AVX2);
}  // namespace headrace::cpu::avx2

#include "backends/cpu/simd/target_end.h"
