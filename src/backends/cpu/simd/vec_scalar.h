// One float at a time, for any machine; also documents the interface of a Vec.
//
// Every Vec has: kWidth, F (floats), I (int32 lanes); loads of float, Bf16, F16 and of codes (Int8,
// E4m3) that convert,
// their partial forms (the first n < kWidth elements, padded with zeros; nothing else is read or
// written), stores that round to nearest even; arithmetic; max and min return the *second* operand
// if either is NaN (like the x86 instructions). Vecs with pairs of lanes also have load_twice,
// which reads kWidth / 2 floats, each into two neighbouring lanes, and swap_pairs of such lanes.
// load_even_odd reads 2 kWidth bf16; interleave restores the memory order of two such vectors.
#pragma once

#include "backends/cpu/simd/element.h"
#include "backends/cpu/simd/units-inl.h"

namespace headrace::cpu::scalar {

struct Vec {
  static constexpr int kWidth = 1;
  using F = float;
  using I = int32_t;

  template <class T>
  static F load(const T* p) {
    return to_float(*p);
  }
  static void load_even_odd(const Bf16* p, F& even, F& odd) {
    even = load(p);
    odd = load(p + 1);
  }
  template <class T>
  static F load_partial(const T* p, int n) {
    return n > 0 ? to_float(*p) : 0.0f;
  }
  template <class T>
  static void store(T* p, F x) {
    from_float(x, *p);
  }
  template <class T>
  static void store_partial(T* p, F x, int n) {
    if (n > 0) from_float(x, *p);
  }

  static void interleave(F&, F&) {}

  static F zero() { return 0.0f; }
  static F set1(float x) { return x; }
  static F lane_index() { return 0.0f; }  // 0, 1, 2, ...
  static F add(F a, F b) { return a + b; }
  static F sub(F a, F b) { return a - b; }
  static F mul(F a, F b) { return a * b; }
  static F div(F a, F b) { return a / b; }
  static F fma(F a, F b, F c) { return __builtin_fmaf(a, b, c); }
  static F max(F a, F b) { return a > b ? a : b; }
  static F min(F a, F b) { return a < b ? a : b; }
  static F abs(F a) { return __builtin_fabsf(a); }
  static F copysign(F magnitude, F sign) { return __builtin_copysignf(magnitude, sign); }
  // a < b ? x : y; y if a or b is NaN.
  static F select_less(F a, F b, F x, F y) { return a < b ? x : y; }
  // keep[i] != 0 ? x : y
  static F select_bytes(const uint8_t* keep, F x, F y) { return *keep != 0 ? x : y; }

  static I bits(F a) { return std::bit_cast<int32_t>(a); }
  static F from_bits(I a) { return std::bit_cast<float>(a); }
  static I add_int(I a, I b) { return a + b; }
  static I sub_int(I a, I b) { return a - b; }
  static I set1_int(int32_t a) { return a; }
  template <int kBits>
  static I shift_left(I a) {
    return static_cast<I>(static_cast<uint32_t>(a) << kBits);
  }
  template <int kBits>
  static I shift_right(I a) {  // arithmetic
    return a >> kBits;
  }

  static float sum(F a) { return a; }
  static void sums(const F* a, float* to) {
    for (int i = 0; i < 8; ++i) to[i] = sum(a[i]);
  }
  static float max_lane(F a) { return a; }
  static void transpose(F (&)[kWidth]) {}
};

struct Isa : FloatUnits<Vec> {
  using FloatIsa = Isa;
  static constexpr int kMr = 4;            // rows per register tile
  static constexpr int kNv = 4;            // columns per register tile, in vectors
  static constexpr int kKeysAtOnce = 2;    // rows of K per step of the direct path
  static constexpr int kValueVectors = 4;  // columns of V per step, in vectors
  // Not fused: without FMA hardware a fused multiply-add is a library call.
  static float madd(float a, float b, float c) { return a * b + c; }
};

}  // namespace headrace::cpu::scalar
