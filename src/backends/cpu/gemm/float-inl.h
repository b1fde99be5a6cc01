// Matmul of panels of f32, f16 or bf16 rows with float activations. The sum of an output runs over
// the columns in order, one multiply-add each, independent of the tile.
#pragma once

#include "backends/cpu/gemm/instance.h"
#include "backends/cpu/gemm/quantised-inl.h"
#include "backends/cpu/simd/element.h"

namespace headrace::cpu::gemm {

template <class Isa>
inline constexpr int kFloatRows = Isa::kNv* Isa::Vec::kWidth;

// kTokens tokens from `token` on, with kPanels panels.
template <class Isa, class E, int kTokens, int kPanels>
inline void float_tile(const PanelCall& call, int64_t panel, int64_t token) {
  using Vec = typename Isa::Vec;
  constexpr int kRows = kFloatRows<Isa>, kNv = Isa::kNv * kPanels;
  const E* w = reinterpret_cast<const E*>(call.panels) + panel * call.columns * kRows;
  const float* x = call.x + token * call.x_stride;
  typename Vec::F sums[kTokens][kNv];
#pragma GCC unroll 16
  for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 8
    for (int v = 0; v < kNv; ++v) sums[t][v] = Vec::zero();
  }
  for (int64_t k = 0; k < call.columns; ++k) {
    if constexpr (kTokens == 1) {
      for (int p = 0; p < kPanels; ++p) prefetch_ahead<Isa>(w + (p * call.columns + k) * kRows);
    }
    typename Vec::F row[kNv];
#pragma GCC unroll 8
    for (int v = 0; v < kNv; ++v)
      row[v] =
          Vec::load(w + (v / Isa::kNv * call.columns + k) * kRows + v % Isa::kNv * Vec::kWidth);
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) {
      const typename Vec::F value = Vec::set1(x[t * call.x_stride + k]);
#pragma GCC unroll 8
      for (int v = 0; v < kNv; ++v) sums[t][v] = Isa::madd(value, row[v], sums[t][v]);
    }
  }
#pragma GCC unroll 16
  for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 8
    for (int v = 0; v < kNv; ++v) {
      const int64_t first = panel * kRows + v * Vec::kWidth;
      if (first < call.rows) store_rows<Vec>(call, token + t, first, sums[t][v]);
    }
  }
}

template <class Isa, class E>
void float_panels(const PanelCall& call) {
  constexpr int kMr = Isa::kMr;
  int64_t panel = call.first_panel;
  if (call.num_tokens == 1)
    for (; panel + 2 <= call.last_panel; panel += 2) float_tile<Isa, E, 1, 2>(call, panel, 0);
  for (; panel < call.last_panel; ++panel) {
    int64_t token = 0;
    for (; token + kMr <= call.num_tokens; token += kMr)
      float_tile<Isa, E, kMr, 1>(call, panel, token);
    for (; token + kMr / 2 <= call.num_tokens; token += kMr / 2)
      float_tile<Isa, E, kMr / 2, 1>(call, panel, token);
    for (; token < call.num_tokens; ++token) float_tile<Isa, E, 1, 1>(call, panel, token);
  }
}

}  // namespace headrace::cpu::gemm
