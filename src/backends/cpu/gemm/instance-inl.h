// The function table of an instruction set, from its two sets of operations.
#pragma once

#include "backends/cpu/gemm/float-inl.h"
#include "backends/cpu/gemm/quantised-inl.h"

namespace headrace::cpu::gemm {

// QuantisedIsa: operations on bytes (isa_*-inl.h). FloatIsa: those of simd/.
template <class QuantisedIsa, class FloatIsa>
constexpr Instance make_instance() {
  using enum WeightType;
  return {QuantisedIsa::kRows,
          kFloatRows<FloatIsa>,
          quantise_tokens<QuantisedIsa>,
          {float_panels<FloatIsa, float>, float_panels<FloatIsa, F16>, float_panels<FloatIsa, Bf16>,
           quantised_panels<QuantisedIsa, q4_0>, quantised_panels<QuantisedIsa, q4_1>,
           quantised_panels<QuantisedIsa, q5_0>, quantised_panels<QuantisedIsa, q5_1>,
           quantised_panels<QuantisedIsa, q8_0>, quantised_panels<QuantisedIsa, q4_k>,
           quantised_panels<QuantisedIsa, q5_k>, quantised_panels<QuantisedIsa, q6_k>}};
}

}  // namespace headrace::cpu::gemm
