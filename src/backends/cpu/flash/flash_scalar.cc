// Any machine: no target region.
#include "backends/cpu/flash/instance-inl.h"
#include "backends/cpu/simd/vec_scalar.h"

namespace headrace::cpu::flash::scalar {

using Isa = cpu::scalar::Isa;
const Instance kInstance = {
    shape_of<Isa>(),
    {task_body<Isa, float, HEADRACE_DTYPE_F32>(), task_body<Isa, F16, HEADRACE_DTYPE_F16>(),
     task_body<Isa, Bf16, HEADRACE_DTYPE_BF16>()}};

}  // namespace headrace::cpu::flash::scalar
