// 64-bit Arm: NEON is always there, no target region.
#include "backends/cpu/attention/flash/backward-inl.h"
#include "backends/cpu/attention/flash/instance-inl.h"
#include "backends/cpu/simd/vec_neon.h"

namespace headrace::cpu::flash::neon {

using Isa = cpu::neon::Isa;
const Instance kBackwardInstance = make_instance<Isa, BackwardTask>();

}  // namespace headrace::cpu::flash::neon
