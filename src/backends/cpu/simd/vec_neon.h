// Four floats. NEON is part of every 64-bit Arm: no target region.
#pragma once

#include <arm_neon.h>
#include <string.h>

#include "backends/cpu/simd/element.h"
#include "backends/cpu/simd/units-inl.h"

namespace headrace::cpu::neon {

struct Vec {
  static constexpr int kWidth = 4;
  using F = float32x4_t;
  using I = int32x4_t;

  static F load(const float* p) { return vld1q_f32(p); }
  static F load(const Bf16* p) { return from_bits(vshlq_n_u32(vmovl_u16(load_halves(p)), 16)); }
  static F load(const F16* p) { return vcvt_f32_f16(vreinterpret_f16_u16(load_halves(p))); }
  static F load(const Int8* p) {
    const int8_t codes[8] = {p[0].code, p[1].code, p[2].code, p[3].code};
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vld1_s8(codes)))));
  }
  static F load(const E4m3* p) {
    const float x[4] = {to_float(p[0]), to_float(p[1]), to_float(p[2]), to_float(p[3])};
    return vld1q_f32(x);
  }
  static void load_even_odd(const Bf16* p, F& even, F& odd) {
    const uint32x4_t pairs = vreinterpretq_u32_u16(vld1q_u16(&p->bits));
    even = from_bits(vshlq_n_u32(pairs, 16));
    odd = from_bits(vandq_u32(pairs, vdupq_n_u32(0xFFFF0000u)));
  }
  template <class T>
  static F load_partial(const T* p, int n) {
    T buffer[kWidth] = {};
    memcpy(buffer, p, static_cast<size_t>(n) * sizeof(T));
    return load(buffer);
  }

  static void store(float* p, F x) { vst1q_f32(p, x); }
  static void store(Bf16* p, F x) { store_halves(p, bf16_from(x)); }
  static void store(F16* p, F x) { store_halves(p, vreinterpret_u16_f16(vcvt_f16_f32(x))); }
  template <class T>
  static void store_partial(T* p, F x, int n) {
    T buffer[kWidth];
    store(buffer, x);
    memcpy(p, buffer, static_cast<size_t>(n) * sizeof(T));
  }

  static F load_twice(const float* p) {
    const float32x2_t x = vld1_f32(p);
    return vcombine_f32(vdup_lane_f32(x, 0), vdup_lane_f32(x, 1));
  }
  static F swap_pairs(F a) { return vrev64q_f32(a); }

  static void interleave(F& even, F& odd) {
    const F low = vzip1q_f32(even, odd);
    odd = vzip2q_f32(even, odd);
    even = low;
  }

  static F zero() { return vdupq_n_f32(0.0f); }
  static F set1(float x) { return vdupq_n_f32(x); }
  static F lane_index() { return F{0, 1, 2, 3}; }
  static F add(F a, F b) { return vaddq_f32(a, b); }
  static F sub(F a, F b) { return vsubq_f32(a, b); }
  static F mul(F a, F b) { return vmulq_f32(a, b); }
  static F div(F a, F b) { return vdivq_f32(a, b); }
  static F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  // Not vmaxq: it returns NaN if either operand is NaN.
  static F max(F a, F b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static F min(F a, F b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
  static F abs(F a) { return vabsq_f32(a); }
  static F copysign(F magnitude, F sign) {
    return vbslq_f32(vdupq_n_u32(0x80000000u), sign, magnitude);
  }
  static F select_less(F a, F b, F x, F y) { return vbslq_f32(vcltq_f32(a, b), x, y); }
  static F select_bytes(const uint8_t* keep, F x, F y) {
    uint32_t bytes;
    memcpy(&bytes, keep, sizeof bytes);
    const uint32x4_t wide = vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(bytes))));
    return vbslq_f32(vceqzq_u32(wide), y, x);
  }

  static I bits(F a) { return vreinterpretq_s32_f32(a); }
  static F from_bits(I a) { return vreinterpretq_f32_s32(a); }
  static I add_int(I a, I b) { return vaddq_s32(a, b); }
  static I sub_int(I a, I b) { return vsubq_s32(a, b); }
  static I set1_int(int32_t a) { return vdupq_n_s32(a); }
  template <int kBits>
  static I shift_left(I a) {
    return vshlq_n_s32(a, kBits);
  }
  template <int kBits>
  static I shift_right(I a) {
    return vshrq_n_s32(a, kBits);
  }

  // Halves first, as on x86, so that sums over 32 lanes have the same bits.
  static float sum(F a) { return vpadds_f32(vadd_f32(vget_low_f32(a), vget_high_f32(a))); }
  // to[i] = sum(a[i]), in the same order of additions.
  static void sums(const F* a, float* to) {
    for (int i = 0; i < 8; i += 4)
      store(to + i, vpaddq_f32(sums_of_halves(a[i], a[i + 1]), sums_of_halves(a[i + 2], a[i + 3])));
  }
  static float max_lane(F a) {
    a = max(a, vextq_f32(a, a, 2));
    return vgetq_lane_f32(max(a, vextq_f32(a, a, 1)), 0);
  }

  static void transpose(F (&r)[kWidth]) {
    const F a = vtrn1q_f32(r[0], r[1]), b = vtrn2q_f32(r[0], r[1]);
    const F c = vtrn1q_f32(r[2], r[3]), d = vtrn2q_f32(r[2], r[3]);
    r[0] = low_halves(a, c);
    r[1] = low_halves(b, d);
    r[2] = high_halves(a, c);
    r[3] = high_halves(b, d);
  }

 private:
  template <class T>
  static uint16x4_t load_halves(const T* p) {
    static_assert(sizeof(T) == sizeof(uint16_t));
    return vld1_u16(&p->bits);
  }
  template <class T>
  static void store_halves(T* p, uint16x4_t x) {
    vst1_u16(&p->bits, x);
  }
  static F from_bits(uint32x4_t a) { return vreinterpretq_f32_u32(a); }
  static uint16x4_t bf16_from(F x) {
    const uint32x4_t b = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(b, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(b, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(b, vdupq_n_u32(0x400000));
    return vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet), 16);
  }
  static F low_halves(F a, F b) {
    return vreinterpretq_f32_f64(vzip1q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
  }
  static F high_halves(F a, F b) {
    return vreinterpretq_f32_f64(vzip2q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
  }
  // Two partial sums of a, two of b.
  static F sums_of_halves(F a, F b) { return vaddq_f32(low_halves(a, b), high_halves(a, b)); }
};

// 4 x 16 register tile: 16 accumulators, 4 columns of B, 4 values of A (g++ 12 loads them all
// first, and spills with 6 rows): 24 of 32 registers.
struct Isa : FloatUnits<Vec> {
  using FloatIsa = Isa;
  static constexpr int kMr = 4;
  static constexpr int kNv = 4;
  static constexpr int kKeysAtOnce = 2;    // rows of K per step of the direct path
  static constexpr int kValueVectors = 4;  // columns of V per step, in vectors
};

}  // namespace headrace::cpu::neon
