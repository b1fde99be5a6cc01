// Any machine: no target region.
#include "backends/cpu/attention/flash/backward-inl.h"
#include "backends/cpu/attention/flash/instance-inl.h"
#include "backends/cpu/simd/vec_scalar.h"

namespace headrace::cpu::flash::scalar {

using Isa = cpu::scalar::Isa;
const Instance kBackwardInstance = make_instance<Isa, BackwardTask>();

}  // namespace headrace::cpu::flash::scalar
