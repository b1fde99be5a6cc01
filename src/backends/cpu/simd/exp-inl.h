// exp and tanh on vectors with known error bounds. Templates on Vec, compiled once per instruction
// set.
#pragma once

#include "backends/cpu/simd/element.h"

namespace headrace::cpu {

// exp(x) = 2^n * exp(r) with n = round(x / ln 2), |r| <= ln(2)/2 * 1.0005. ln 2 is taken in two
// parts so that r is exact to 2^-53; exp(r) = 1 + r * (1 + r * q(r)) with q the minimax polynomial
// of degree 4 for the relative error: 3.1e-9, a twentieth of half an ulp. 1.5 * 2^23 added to a
// float leaves its rounded integer in the low mantissa bits.
struct ExpConstants {
  static constexpr float kLog2E = 0x1.715476p+0f;
  static constexpr float kLn2High = 0x1.62e430p-1f;
  static constexpr float kLn2Low = -0x1.05c610p-29f;
  static constexpr float kRounder = 0x1.8p23f;
  static constexpr float kQ0 = 0x1.fffffcp-2f;
  static constexpr float kQ1 = 0x1.555492p-3f;
  static constexpr float kQ2 = 0x1.5558f2p-5f;
  static constexpr float kQ3 = 0x1.123a1ep-7f;
  static constexpr float kQ4 = 0x1.6a2402p-10f;
};

// All functions process kN vectors at once, stage by stage: one exponential is a chain of 13
// dependent operations, and a 64-entry scheduler cannot overlap chains written one after the other.

// y = exp(x) * 2^-n for n = round(x / ln 2).
template <class Vec, int kN>
inline void exp_of_reduced(typename Vec::F (&x)[kN], const typename Vec::F (&n)[kN]) {
  using C = ExpConstants;
  typename Vec::F q[kN];
  for (int i = 0; i < kN; ++i) x[i] = Vec::fma(n[i], Vec::set1(-C::kLn2High), x[i]);
  for (int i = 0; i < kN; ++i) x[i] = Vec::fma(n[i], Vec::set1(-C::kLn2Low), x[i]);
  for (int i = 0; i < kN; ++i) q[i] = Vec::fma(Vec::set1(C::kQ4), x[i], Vec::set1(C::kQ3));
  for (int i = 0; i < kN; ++i) q[i] = Vec::fma(q[i], x[i], Vec::set1(C::kQ2));
  for (int i = 0; i < kN; ++i) q[i] = Vec::fma(q[i], x[i], Vec::set1(C::kQ1));
  for (int i = 0; i < kN; ++i) q[i] = Vec::fma(q[i], x[i], Vec::set1(C::kQ0));
  for (int i = 0; i < kN; ++i) q[i] = Vec::fma(q[i], x[i], Vec::set1(1.0f));
  for (int i = 0; i < kN; ++i) x[i] = Vec::fma(q[i], x[i], Vec::set1(1.0f));
}

// Valid for all floats: denormal results, 0, infinity, and NaN propagates. Error at most 1 ulp.
template <class Vec>
inline typename Vec::F exp(typename Vec::F x) {
  using C = ExpConstants;
  // Beyond these bounds the result is 0 or infinity anyway. x is the second operand, so that NaN
  // propagates.
  x = Vec::min(Vec::set1(89.0f), Vec::max(Vec::set1(-104.0f), x));
  const auto rounded = Vec::fma(x, Vec::set1(C::kLog2E), Vec::set1(C::kRounder));
  const auto n = Vec::sub(rounded, Vec::set1(C::kRounder));
  typename Vec::F y[1] = {x};
  exp_of_reduced<Vec>(y, {n});
  // 2^n in two factors, since n reaches 129 and -151.
  const auto exponent = Vec::sub_int(Vec::bits(rounded), Vec::bits(Vec::set1(C::kRounder)));
  const auto half = Vec::template shift_right<1>(exponent);
  const auto bias = Vec::set1_int(127);
  const auto scale1 = Vec::from_bits(Vec::template shift_left<23>(Vec::add_int(half, bias)));
  const auto scale2 = Vec::from_bits(
      Vec::template shift_left<23>(Vec::add_int(Vec::sub_int(exponent, half), bias)));
  return Vec::mul(Vec::mul(y[0], scale1), scale2);
}

// For softmax: 2^kShift * exp(x) for x <= 1 or NaN. Results below 2^-126 are flushed to 0 (they are
// negligible against the row's largest term, 2^kShift). One factor and one shift suffice, because
// the rounding constant includes the exponent bias.
template <class Vec, int kShift, int kN>
inline void exp_softmax(typename Vec::F (&x)[kN]) {
  using C = ExpConstants;
  using F = typename Vec::F;
  static_assert(kShift == 0 || kShift == -20);
  const auto rounder = Vec::set1(C::kRounder + static_cast<float>(127 + kShift));
  // ln(2^-126 / 2^kShift), rounded up
  const auto smallest = Vec::set1(kShift == 0 ? -0x1.5d58a0p+6f : -0x1.25e4f6p+6f);
  F y[kN], n[kN], scale[kN];
  for (int i = 0; i < kN; ++i) n[i] = Vec::fma(x[i], Vec::set1(C::kLog2E), rounder);
  for (int i = 0; i < kN; ++i)
    scale[i] = Vec::from_bits(Vec::template shift_left<23>(Vec::bits(n[i])));
  for (int i = 0; i < kN; ++i) n[i] = Vec::sub(n[i], rounder);
  for (int i = 0; i < kN; ++i) y[i] = x[i];
  exp_of_reduced<Vec>(y, n);
  for (int i = 0; i < kN; ++i) y[i] = Vec::mul(y[i], scale[i]);
  for (int i = 0; i < kN; ++i) x[i] = Vec::select_less(x[i], smallest, Vec::zero(), y[i]);
}

template <class Vec, int kShift = 0>
inline typename Vec::F exp_softmax(typename Vec::F x) {
  typename Vec::F one[1] = {x};
  exp_softmax<Vec, kShift>(one);
  return one[0];
}

// |x| <= 0.625: x * (1 + x^2 * p(x^2)), minimax, relative error 5e-9. Above: 1 - 2 / (exp(2|x|) +
// 1), whose rounding errors are small against tanh >= 0.55.
template <class Vec>
inline typename Vec::F tanh(typename Vec::F x) {
  const auto magnitude = Vec::abs(x);
  const auto y = Vec::mul(x, x);
  auto p = Vec::fma(Vec::set1(-0x1.722b0cp-8f), y, Vec::set1(0x1.5157fep-6f));
  p = Vec::fma(p, y, Vec::set1(-0x1.b81dc2p-5f));
  p = Vec::fma(p, y, Vec::set1(0x1.110646p-3f));
  p = Vec::fma(p, y, Vec::set1(-0x1.55552ep-2f));
  const auto small = Vec::fma(Vec::mul(y, p), x, x);
  const auto e = exp<Vec>(Vec::add(magnitude, magnitude));
  const auto ratio = Vec::div(Vec::set1(2.0f), Vec::add(e, Vec::set1(1.0f)));
  const auto large = Vec::copysign(Vec::sub(Vec::set1(1.0f), ratio), x);
  return Vec::select_less(magnitude, Vec::set1(0.625f), small, large);  // NaN: large, which is NaN
}

}  // namespace headrace::cpu
