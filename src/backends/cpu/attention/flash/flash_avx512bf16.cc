#include <immintrin.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "backends/cpu/attention/flash/flash.h"
#include "backends/cpu/simd/element.h"
#include "core/philox.h"

// Nothing above this line is compiled for the instruction set, everything below is.
// clang-format off
#include "backends/cpu/simd/target_avx512bf16.h"
#include "backends/cpu/simd/vec_avx512bf16.h"
#include "backends/cpu/attention/flash/flash-inl.h"
#include "backends/cpu/attention/flash/instance-inl.h"
// clang-format on

namespace headrace::cpu::flash::avx512bf16 {

using Isa = cpu::avx512bf16::PairIsa;
const Instance kInstance = {shape_of<Isa>(),
                            {nullptr, nullptr, task_body<Task<Isa, Bf16>, HEADRACE_DTYPE_BF16>()}};

}  // namespace headrace::cpu::flash::avx512bf16

#include "backends/cpu/simd/target_end.h"
