// Panels of 4 rows: a register holds a quad of each row.
//
// smull multiplies signed bytes to 16 bits; smlal adds further products to them. An element of b
// bits against |x| <= 127 gives at most (2^b - 1) * 127 there: sums of 8 (b = 4 and 5) and 4 (b =
// 6) such products stay below 2^15, as do 2 of signed elements, at most 128 * 127 each.
#pragma once

#include "backends/cpu/gemm/layout.h"
#include "backends/cpu/simd/vec_neon.h"

namespace headrace::cpu::gemm::neon {

struct Isa {
  using Vec = cpu::neon::Vec;
  using Bytes = uint8x16_t;
  using Ints = int32x4_t;
  static constexpr int kRows = 4;

  static Bytes load_bytes(const uint8_t* p) { return vld1q_u8(p); }
  static void store_bytes(uint8_t* p, Bytes x) { vst1q_u8(p, x); }
  static Bytes signed_bytes(Bytes a) { return a; }
  static Bytes low_nibbles(Bytes a) { return vandq_u8(a, vdupq_n_u8(15)); }
  static Bytes high_nibbles(Bytes a) { return vshrq_n_u8(a, 4); }
  static Bytes with_high_bits(Bytes elements, Bytes bits, int mask, int shift) {
    const Bytes kept = vandq_u8(bits, vdupq_n_u8(static_cast<uint8_t>(mask)));
    return vorrq_u8(elements, vshlq_u8(kept, vdupq_n_s8(static_cast<int8_t>(shift))));
  }
  static Vec::F bytes_as_floats(const uint8_t* p) {
    uint32_t bytes;
    memcpy(&bytes, p, sizeof bytes);
    return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(bytes)))));
  }
  static Vec::F to_floats(Ints a) { return vcvtq_f32_s32(a); }
  static Vec::F madd(Vec::F a, Vec::F b, Vec::F c) { return Vec::fma(a, b, c); }

  template <int kBits>
  static Ints dot(const Bytes (&w)[kQuads], const ActivationGroup& x) {
    constexpr int kCount = kBits == 8 ? 2 : kQuads;
    Ints sum = vdupq_n_s32(0);
#pragma GCC unroll 4
    for (int q = 0; q < kQuads; q += kCount)
      sum = vaddq_s32(sum, quads<kCount>(w + q, x.elements + q * 4));
    return sum;
  }

  // 6-bit elements with zero point 32 and one scale per 16 columns.
  struct TwoScales {
    Ints first, second;  // of each row
  };
  static TwoScales load_two_scales(const uint8_t* p) {
    const int16x8_t pairs = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
    return {vmovl_s16(vget_low_s16(vuzp1q_s16(pairs, pairs))),
            vmovl_s16(vget_low_s16(vuzp2q_s16(pairs, pairs)))};
  }
  static Ints dot_two_scales(const Bytes (&w)[kQuads], const TwoScales& scales,
                             const ActivationGroup& x) {
    const Ints first = vaddq_s32(quads<4>(w, x.elements), vdupq_n_s32(32 * x.minus_sums[0]));
    const Ints second =
        vaddq_s32(quads<4>(w + 4, x.elements + 16), vdupq_n_s32(32 * x.minus_sums[1]));
    return vmlaq_s32(vmulq_s32(first, scales.first), second, scales.second);
  }

  // Register tile: dots[t][p] of unpacked panels with tokens. A group of a panel fits into 8 of 32
  // registers, so the tokens are processed one after the other.
  template <int kBits, int kTokens, int kPanels>
  static void dots(const uint8_t (&w)[kQuads][kPanels][kRows * 4], const ActivationGroup* x,
                   Ints (&out)[kTokens][kPanels]) {
    for (int p = 0; p < kPanels; ++p) {
      Bytes bytes[kQuads];
      load_panel(w, p, bytes);
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) out[t][p] = dot<kBits>(bytes, x[t]);
    }
  }
  template <int kTokens, int kPanels>
  static void dots_two_scales(const uint8_t (&w)[kQuads][kPanels][kRows * 4],
                              const TwoScales* scales, const ActivationGroup* x,
                              Ints (&out)[kTokens][kPanels]) {
    for (int p = 0; p < kPanels; ++p) {
      Bytes bytes[kQuads];
      load_panel(w, p, bytes);
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) out[t][p] = dot_two_scales(bytes, scales[p], x[t]);
    }
  }

  static void quantise(const float* x, ActivationGroup& to) {
    float32x4_t v[8];
    uint32x4_t largest = vdupq_n_u32(0);  // magnitudes compared as bits: NaN is above infinity
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      v[i] = vld1q_f32(x + 4 * i);
      largest = vmaxq_u32(largest, vreinterpretq_u32_f32(vabsq_f32(v[i])));
    }
    const uint32_t bits = vmaxvq_u32(largest);
    const float magnitude = std::bit_cast<float>(bits);
    memset(&to, 0, sizeof to);
    if (bits >= 0x7f800000u) {
      to.scale = to.scaled_sum = __builtin_nanf("");
      return;
    }
    if (magnitude < kSmallestMagnitude) return;
    const float32x4_t factor = vdupq_n_f32(127.0f / magnitude);
    int32x4_t q[8];
    // Sums of even and odd vectors, in the order of the sums on x86.
    float32x4_t products[2] = {}, squares[2] = {};
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const float32x4_t y = vmulq_f32(v[i], factor);
      q[i] = vcvtnq_s32_f32(y);
      const float32x4_t rounded = vcvtq_f32_s32(q[i]);
      products[i % 2] = vaddq_f32(products[i % 2], vmulq_f32(y, rounded));
      squares[i % 2] = vaddq_f32(squares[i % 2], vmulq_f32(rounded, rounded));
    }
    const float fit =
        Vec::sum(vaddq_f32(products[0], products[1])) / Vec::sum(vaddq_f32(squares[0], squares[1]));
    store_elements(q, magnitude / 127.0f * fit, to);
  }

 private:
  template <int kPanels>
  static void load_panel(const uint8_t (&w)[kQuads][kPanels][kRows * 4], int p,
                         Bytes (&to)[kQuads]) {
#pragma GCC unroll 8
    for (int q = 0; q < kQuads; ++q) to[q] = load_bytes(w[q][p]);
  }

  // The sum over kCount quads, which fits 16 bits.
  template <int kCount>
  static Ints quads(const Bytes* w, const int8_t* x) {
    int16x8_t low = vdupq_n_s16(0), high = vdupq_n_s16(0);  // rows 0 and 1, 2 and 3
#pragma GCC unroll 8
    for (int q = 0; q < kCount; ++q) {
      int32_t bytes;
      memcpy(&bytes, x + q * 4, sizeof bytes);
      const int8x16_t quad = vreinterpretq_s8_s32(vdupq_n_s32(bytes));
      const int8x16_t elements = vreinterpretq_s8_u8(w[q]);
      low = vmlal_s8(low, vget_low_s8(elements), vget_low_s8(quad));
      high = vmlal_high_s8(high, elements, quad);
    }
    return vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high));
  }

  // q: 32 integers within [-127, 127].
  static void store_elements(const int32x4_t (&q)[8], float scale, ActivationGroup& to) {
    int32_t sums[2];
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const int32x4_t* from = q + half * 4;
      const int16x8_t first = vcombine_s16(vmovn_s32(from[0]), vmovn_s32(from[1]));
      const int16x8_t second = vcombine_s16(vmovn_s32(from[2]), vmovn_s32(from[3]));
      vst1q_s8(to.elements + half * 16, vcombine_s8(vmovn_s16(first), vmovn_s16(second)));
      sums[half] = vaddlvq_s16(vaddq_s16(first, second));
      to.minus_sums[half] = static_cast<int16_t>(-sums[half]);
    }
    to.scale = scale;
    to.scaled_sum = scale * static_cast<float>(sums[0] + sums[1]);
  }
};

}  // namespace headrace::cpu::gemm::neon
