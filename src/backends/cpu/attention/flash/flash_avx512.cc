#include <immintrin.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <type_traits>

#include "backends/cpu/attention/flash/flash.h"
#include "backends/cpu/simd/element.h"
#include "core/philox.h"

// Nothing above this line is compiled for the instruction set, everything below is.
// clang-format off
#include "backends/cpu/simd/target_avx512.h"
#define HEADRACE_AVX512_NAMESPACE avx512
#include "backends/cpu/simd/vec_avx512.h"
#include "backends/cpu/attention/flash/codes_avx512-inl.h"
#include "backends/cpu/attention/flash/flash-inl.h"
#include "backends/cpu/attention/flash/instance-inl.h"
// clang-format on

namespace headrace::cpu::flash::avx512 {

using Isa = cpu::avx512::Isa;
const Instance kInstance = make_instance<Isa, Task>(IntegerProducts<Isa>::kIsa);

}  // namespace headrace::cpu::flash::avx512

#include "backends/cpu/simd/target_end.h"
