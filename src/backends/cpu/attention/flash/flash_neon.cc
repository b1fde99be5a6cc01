// 64-bit Arm: NEON is always there, no target region.
#include "backends/cpu/attention/flash/flash-inl.h"
#include "backends/cpu/attention/flash/instance-inl.h"
#include "backends/cpu/simd/vec_neon.h"

namespace headrace::cpu::flash::neon {

using Isa = cpu::neon::Isa;
const Instance kInstance = make_instance<Isa, Task>();

}  // namespace headrace::cpu::flash::neon
