// Makes an Instance of a task class, with the element types of this build.
#pragma once

#include "backends/cpu/attention/flash/flash.h"
#include "backends/cpu/attention/flash/gemm-inl.h"

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

// integer_products_isa: see IsaShape.
template <class Isa>
constexpr IsaShape shape_of(uint32_t integer_products_isa = 0) {
  return {Isa::Vec::kWidth, Isa::kMr, kNr<Isa>, Isa::kPair, integer_products_isa};
}

// T<Isa, E>: Task, BackwardTask.
template <class Isa, template <class, class> class T>
constexpr Instance make_instance(uint32_t integer_products_isa = 0) {
  return {
      shape_of<Isa>(integer_products_isa),
      {task_body<T<Isa, float>, HEADRACE_DTYPE_F32>(), task_body<T<Isa, F16>, HEADRACE_DTYPE_F16>(),
       task_body<T<Isa, Bf16>, HEADRACE_DTYPE_BF16>()}};
}

}  // namespace headrace::cpu::flash
