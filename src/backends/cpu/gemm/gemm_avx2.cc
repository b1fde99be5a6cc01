#include <immintrin.h>
#include <string.h>

#include "backends/cpu/gemm/instance.h"
#include "backends/cpu/simd/element.h"

// Nothing above this line is compiled for the instruction set, everything below is.
// clang-format off
#include "backends/cpu/simd/target_avx2.h"
#include "backends/cpu/simd/vec_avx2.h"
#include "backends/cpu/gemm/isa_avx2-inl.h"
#include "backends/cpu/gemm/instance-inl.h"
// clang-format on

namespace headrace::cpu::gemm::avx2 {

const Instance kInstance = make_instance<Isa, cpu::avx2::Isa>();

}  // namespace headrace::cpu::gemm::avx2

#include "backends/cpu/simd/target_end.h"
