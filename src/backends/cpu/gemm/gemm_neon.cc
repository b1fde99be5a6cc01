// 64-bit Arm: NEON is always there, no target region.
#include "backends/cpu/gemm/instance-inl.h"
#include "backends/cpu/gemm/isa_neon-inl.h"

namespace headrace::cpu::gemm::neon {

const Instance kInstance = make_instance<Isa, cpu::neon::Isa>();

}  // namespace headrace::cpu::gemm::neon
