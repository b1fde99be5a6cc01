#include <immintrin.h>
#include <string.h>

#include "backends/cpu/gemm/instance.h"
#include "backends/cpu/simd/element.h"

// Nothing above this line is compiled for the instruction set, everything below is.
// clang-format off
#include "backends/cpu/simd/target_avx512vnni.h"
#define HEADRACE_AVX512_NAMESPACE avx512vnni
#include "backends/cpu/simd/vec_avx512.h"
#include "backends/cpu/gemm/isa_avx512vnni-inl.h"
#include "backends/cpu/gemm/instance-inl.h"
// clang-format on

namespace headrace::cpu::gemm::avx512vnni {

const Instance kInstance = make_instance<Isa, cpu::avx512vnni::Isa>();

}  // namespace headrace::cpu::gemm::avx512vnni

#include "backends/cpu/simd/target_end.h"
