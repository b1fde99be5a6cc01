// Any machine: no target region.
#include "backends/cpu/attention/flash/flash-inl.h"
#include "backends/cpu/attention/flash/instance-inl.h"
#include "backends/cpu/simd/vec_scalar.h"

namespace headrace::cpu::flash::scalar {

using Isa = cpu::scalar::Isa;
const Instance kInstance = make_instance<Isa, Task>();

}  // namespace headrace::cpu::flash::scalar
