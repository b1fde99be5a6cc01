// Any machine: no target region.
#include "backends/cpu/gemm/instance-inl.h"
#include "backends/cpu/gemm/isa_scalar-inl.h"
#include "backends/cpu/simd/vec_scalar.h"

namespace headrace::cpu::gemm::scalar {

const Instance kInstance = make_instance<Isa, cpu::scalar::Isa>();

}  // namespace headrace::cpu::gemm::scalar
