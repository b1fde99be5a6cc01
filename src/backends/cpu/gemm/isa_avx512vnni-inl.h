// Panels of 16 rows: a register holds a quad of each row. Included only below target_avx512vnni.h.
//
// vpdpbusd adds four products of unsigned and signed bytes to 32 bits, so a group needs 8 of them.
// Signed elements are unsigned ones with a zero point of 128.
#pragma once

#include "backends/cpu/gemm/layout.h"
#include "backends/cpu/gemm/quantise_x86-inl.h"

namespace headrace::cpu::gemm::avx512vnni {

struct Isa {
  using Vec = cpu::avx512vnni::Vec;
  using Bytes = __m512i;
  using Ints = __m512i;
  static constexpr int kRows = 16;

  static Bytes load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static void store_bytes(uint8_t* p, Bytes x) { _mm512_storeu_si512(p, x); }
  static Bytes signed_bytes(Bytes a) {
    return _mm512_xor_si512(a, _mm512_set1_epi8(static_cast<char>(0x80)));
  }
  static Bytes low_nibbles(Bytes a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
  static Bytes high_nibbles(Bytes a) { return low_nibbles(_mm512_srli_epi16(a, 4)); }
  static Bytes with_high_bits(Bytes elements, Bytes bits, int mask, int shift) {
    const Bytes kept = _mm512_and_si512(bits, _mm512_set1_epi8(static_cast<char>(mask)));
    return _mm512_or_si512(elements, shift >= 0
                                         ? _mm512_slli_epi16(kept, static_cast<unsigned>(shift))
                                         : _mm512_srli_epi16(kept, static_cast<unsigned>(-shift)));
  }
  static Vec::F bytes_as_floats(const uint8_t* p) {
    return to_floats(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static Vec::F to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
  static Vec::F madd(Vec::F a, Vec::F b, Vec::F c) { return Vec::fma(a, b, c); }

  template <int kBits>
  static Ints dot(const Bytes (&w)[kQuads], const ActivationGroup& x) {
    const Ints first = four_quads(start<kBits>(x), w, x.elements);
    return _mm512_add_epi32(first, four_quads(_mm512_setzero_si512(), w + 4, x.elements + 16));
  }

  struct TwoScales {
    __m512i first, second;  // of each row, 32 bits
    __m512i both;           // pairs of 16 bits, times the zero point of 32
  };
  static TwoScales load_two_scales(const uint8_t* p) {
    const __m512i pairs =
        _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_srai_epi32(_mm512_slli_epi32(pairs, 16), 16), _mm512_srai_epi32(pairs, 16),
            _mm512_slli_epi16(pairs, 5)};
  }
  static Ints dot_two_scales(const Bytes (&w)[kQuads], const TwoScales& scales,
                             const ActivationGroup& x) {
    const Ints zero = _mm512_setzero_si512();
    return scaled(four_quads(zero, w, x.elements), four_quads(zero, w + 4, x.elements + 16), scales,
                  x);
  }

  // Register tile: dots[t][p] of unpacked panels with tokens.
  template <int kBits, int kTokens, int kPanels>
  static void dots(const uint8_t (&w)[kQuads][kPanels][kRows * 4], const ActivationGroup* x,
                   Ints (&out)[kTokens][kPanels]) {
#pragma GCC unroll 8
    for (int i = 0; i < kTokens * kPanels; ++i)
      out[i / kPanels][i % kPanels] = start<kBits>(x[i / kPanels]);
    add_quads(w, 0, kQuads, x, out);
  }
  template <int kTokens, int kPanels>
  static void dots_two_scales(const uint8_t (&w)[kQuads][kPanels][kRows * 4],
                              const TwoScales* scales, const ActivationGroup* x,
                              Ints (&out)[kTokens][kPanels]) {
    Ints second[kTokens][kPanels];
#pragma GCC unroll 8
    for (int i = 0; i < kTokens * kPanels; ++i)
      out[i / kPanels][i % kPanels] = second[i / kPanels][i % kPanels] = _mm512_setzero_si512();
    add_quads(w, 0, kQuads / 2, x, out);
    add_quads(w, kQuads / 2, kQuads, x, second);
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p)
        out[t][p] = scaled(out[t][p], second[t][p], scales[p], x[t]);
    }
  }

  static void quantise(const float* x, ActivationGroup& to) { quantise_group<Isa>(x, to); }

 private:
  static Ints quad(const int8_t* x) {
    int32_t bytes;
    memcpy(&bytes, x, sizeof bytes);
    return _mm512_set1_epi32(bytes);
  }
  static Ints minus_sums(const ActivationGroup& x) {
    int32_t pair;
    memcpy(&pair, x.minus_sums, sizeof pair);
    return _mm512_set1_epi32(pair);
  }
  // Initial value of a group's sum.
  template <int kBits>
  static Ints start(const ActivationGroup& x) {
    if constexpr (kBits != 8) return _mm512_setzero_si512();
    return _mm512_madd_epi16(minus_sums(x), _mm512_set1_epi16(128));
  }
  static Ints four_quads(Ints sum, const Bytes* w, const int8_t* x) {
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) sum = _mm512_dpbusd_epi32(sum, w[q], quad(x + q * 4));
    return sum;
  }
  static Ints scaled(Ints first, Ints second, const TwoScales& scales, const ActivationGroup& x) {
    const Ints sum = _mm512_add_epi32(_mm512_mullo_epi32(first, scales.first),
                                      _mm512_mullo_epi32(second, scales.second));
    return _mm512_dpwssd_epi32(sum, minus_sums(x), scales.both);
  }
  template <int kTokens, int kPanels>
  static void add_quads(const uint8_t (&w)[kQuads][kPanels][kRows * 4], int begin, int end,
                        const ActivationGroup* x, Ints (&sums)[kTokens][kPanels]) {
#pragma GCC unroll 8
    for (int q = begin; q < end; ++q) {
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) {
        const Ints bytes = quad(x[t].elements + q * 4);
#pragma GCC unroll 2
        for (int p = 0; p < kPanels; ++p)
          sums[t][p] = _mm512_dpbusd_epi32(sums[t][p], load_bytes(w[q][p]), bytes);
      }
    }
  }
};

}  // namespace headrace::cpu::gemm::avx512vnni
