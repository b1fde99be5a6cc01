// Defines kInstance of the enclosing instruction set: which element types this build has.
#pragma once

#include "backends/cpu/flash/flash-inl.h"

namespace headrace::cpu::flash {

#ifndef HEADRACE_DTYPE_F32
#define HEADRACE_DTYPE_F32 1
#endif
#ifndef HEADRACE_DTYPE_F16
#define HEADRACE_DTYPE_F16 1
#endif
#ifndef HEADRACE_DTYPE_BF16
#define HEADRACE_DTYPE_BF16 1
#endif

// Null where the build leaves the element type out.
template <class Isa, class E, bool kBuilt>
constexpr TaskBody task_body() {
  if constexpr (kBuilt) {
    return run_task<Isa, E>;
  } else {
    return nullptr;
  }
}

template <class Isa>
constexpr IsaShape shape_of() {
  return {Isa::Vec::kWidth, Isa::kMr, kNr<Isa>, Isa::kPair};
}

}  // namespace headrace::cpu::flash
