#include <immintrin.h>
#include <string.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "backends/cpu/elementwise/elementwise.h"
#include "backends/cpu/simd/element.h"

// Nothing above this line is compiled for the instruction set, everything below is.
// clang-format off
#include "backends/cpu/simd/target_avx2.h"
#include "backends/cpu/simd/vec_avx2.h"
#include "backends/cpu/elementwise/elementwise-inl.h"
// clang-format on

namespace headrace::cpu::avx2 {
extern const ElementwiseOps kElementwiseOps;
const ElementwiseOps kElementwiseOps = ElementwiseKernels<Vec>::make("avx2", HEADRACE_ISA_AVX2);
}  // namespace headrace::cpu::avx2

#include "backends/cpu/simd/target_end.h"
