// Makes an Instance of a task class, with the element types of this build.
#pragma once

#include "backends/cpu/attention/flash/flash.h"
#include "backends/cpu/attention/flash/gemm-inl.h"
#include "backends/cpu/attention/flash/integer_products-inl.h"

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

template <class T>
void run_task(void* call, int64_t index, int worker) {
  T(*static_cast<const typename T::CallType*>(call), index, worker).run();
}

// Null if the build excludes the element type.
template <class T, bool kBuilt>
constexpr TaskBody task_body() {
  if constexpr (kBuilt) {
    return run_task<T>;
  } else {
    return nullptr;
  }
}

template <class Isa>
constexpr IsaShape shape_of() {
  return {Isa::Vec::kWidth, Isa::kMr, kNr<Isa>, Isa::kPair, IntegerProducts<Isa>::kExists};
}

// T<Isa, E>: Task, BackwardTask.
template <class Isa, template <class, class> class T>
constexpr Instance make_instance() {
  return {
      shape_of<Isa>(),
      {task_body<T<Isa, float>, HEADRACE_DTYPE_F32>(), task_body<T<Isa, F16>, HEADRACE_DTYPE_F16>(),
       task_body<T<Isa, Bf16>, HEADRACE_DTYPE_BF16>()}};
}

}  // namespace headrace::cpu::flash
