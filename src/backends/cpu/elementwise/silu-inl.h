// silu(x) = x / (1 + exp(-x)) on vectors. Templates on Vec, compiled once per instruction set.
#pragma once

#include "backends/cpu/simd/exp-inl.h"

namespace headrace::cpu {

// With e = exp(-|g|) = y * 2^n: g / (1 + e) for g >= 0, g * y / (1 + e) * 2^n for g < 0. The factor
// 2^n is applied last and in two halves, so that no intermediate is denormal or infinite before the
// result is. Below -150 the result is -0: the clamp avoids -inf * 0.
template <class Vec, int kN>
inline void silu(typename Vec::F (&g)[kN]) {
  using C = ExpConstants;
  using F = typename Vec::F;
  const F rounder = Vec::set1(C::kRounder), one = Vec::set1(1.0f), zero = Vec::zero();
  const auto bias = Vec::set1_int(127);
  F x[kN], y[kN], n[kN], scale1[kN], scale2[kN];
  for (int i = 0; i < kN; ++i)
    x[i] = Vec::max(Vec::set1(-150.0f), Vec::copysign(g[i], Vec::set1(-1.0f)));
  for (int i = 0; i < kN; ++i) n[i] = Vec::fma(x[i], Vec::set1(C::kLog2E), rounder);
  for (int i = 0; i < kN; ++i) {
    const auto exponent = Vec::sub_int(Vec::bits(n[i]), Vec::bits(rounder));
    const auto half = Vec::template shift_right<1>(exponent);
    const auto rest = Vec::sub_int(exponent, half);
    scale1[i] = Vec::from_bits(Vec::template shift_left<23>(Vec::add_int(half, bias)));
    scale2[i] = Vec::from_bits(Vec::template shift_left<23>(Vec::add_int(rest, bias)));
  }
  for (int i = 0; i < kN; ++i) n[i] = Vec::sub(n[i], rounder);
  for (int i = 0; i < kN; ++i) y[i] = x[i];
  exp_of_reduced<Vec>(y, n);
  for (int i = 0; i < kN; ++i) {
    const F e = Vec::mul(Vec::mul(y[i], scale1[i]), scale2[i]);
    const F numerator = Vec::select_less(g[i], zero, Vec::mul(x[i], y[i]), g[i]);  // NaN: g
    const F ratio = Vec::div(numerator, Vec::add(one, e));
    const F scaled = Vec::mul(ratio, Vec::select_less(g[i], zero, scale1[i], one));
    g[i] = Vec::mul(scaled, Vec::select_less(g[i], zero, scale2[i], one));
  }
}

}  // namespace headrace::cpu
