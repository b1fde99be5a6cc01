// Panels of 8 rows: a register holds a quad of each row. Included only below target_avx2.h.
//
// vpmaddubsw multiplies unsigned with signed bytes and adds neighbours in 16 bits, saturating. An
// element of b bits against |x| <= 127 gives at most 2 * (2^b - 1) * 127 there: sums of 8 (b = 4),
// 4 (b = 5) and 2 (b = 6) such products stay below 2^15.
#pragma once

#include "backends/cpu/gemm/layout.h"
#include "backends/cpu/gemm/quantise_x86-inl.h"
#include "backends/cpu/simd/vec_avx2.h"

namespace headrace::cpu::gemm::avx2 {

struct Isa {
  using Vec = cpu::avx2::Vec;
  using Bytes = __m256i;
  using Ints = __m256i;
  static constexpr int kRows = 8;

  static Bytes load_bytes(const uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static void store_bytes(uint8_t* p, Bytes x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x);
  }
  static Bytes signed_bytes(Bytes a) { return a; }
  static Bytes low_nibbles(Bytes a) { return _mm256_and_si256(a, _mm256_set1_epi8(15)); }
  static Bytes high_nibbles(Bytes a) { return low_nibbles(_mm256_srli_epi16(a, 4)); }
  static Bytes with_high_bits(Bytes elements, Bytes bits, int mask, int shift) {
    const Bytes kept = _mm256_and_si256(bits, _mm256_set1_epi8(static_cast<char>(mask)));
    return _mm256_or_si256(
        elements, shift >= 0 ? _mm256_slli_epi16(kept, shift) : _mm256_srli_epi16(kept, -shift));
  }
  static Vec::F bytes_as_floats(const uint8_t* p) {
    return to_floats(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static Vec::F to_floats(Ints a) { return _mm256_cvtepi32_ps(a); }
  static Vec::F madd(Vec::F a, Vec::F b, Vec::F c) { return Vec::fma(a, b, c); }

  template <int kBits>
  static Ints dot(const Bytes (&w)[kQuads], const ActivationGroup& x) {
    const int8_t* e = x.elements;
    if constexpr (kBits == 4) {
      return widen(_mm256_add_epi16(four_quads(w, e), four_quads(w + 4, e + 16)));
    } else if constexpr (kBits == 5) {
      return _mm256_add_epi32(widen(four_quads(w, e)), widen(four_quads(w + 4, e + 16)));
    } else {
      static_assert(kBits == 8);
      Ints sum = _mm256_setzero_si256();
#pragma GCC unroll 8
      for (int q = 0; q < kQuads; ++q)
        sum = _mm256_add_epi32(sum, widen(signed_product(w[q], quad(e + q * 4))));
      return sum;
    }
  }

  struct TwoScales {
    __m256i first, second;  // each row's 32 bits have the scale twice
    __m256i both;           // both of them, times the zero point of 32
  };
  static TwoScales load_two_scales(const uint8_t* p) {
    const __m256i pairs =
        _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i low = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff));
    const __m256i high = _mm256_srli_epi32(pairs, 16);
    return {_mm256_or_si256(low, _mm256_slli_epi32(low, 16)),
            _mm256_or_si256(high, _mm256_slli_epi32(high, 16)), _mm256_slli_epi16(pairs, 5)};
  }
  static Ints dot_two_scales(const Bytes (&w)[kQuads], const TwoScales& scales,
                             const ActivationGroup& x) {
    const int8_t* e = x.elements;
    int32_t minus_sums;
    memcpy(&minus_sums, x.minus_sums, sizeof minus_sums);
    const Ints first = _mm256_add_epi32(_mm256_madd_epi16(two_quads(w, e), scales.first),
                                        _mm256_madd_epi16(two_quads(w + 2, e + 8), scales.first));
    const Ints second =
        _mm256_add_epi32(_mm256_madd_epi16(two_quads(w + 4, e + 16), scales.second),
                         _mm256_madd_epi16(two_quads(w + 6, e + 24), scales.second));
    return _mm256_add_epi32(_mm256_add_epi32(first, second),
                            _mm256_madd_epi16(_mm256_set1_epi32(minus_sums), scales.both));
  }

  // Register tile: dots[t][p] of unpacked panels with tokens. kSteps quads are summed in 16 bits
  // before they are widened.
  template <int kBits, int kTokens, int kPanels>
  static void dots(const uint8_t (&w)[kQuads][kPanels][kRows * 4], const ActivationGroup* x,
                   Ints (&out)[kTokens][kPanels]) {
    if constexpr (kBits == 8) {
      signed_dots(w, x, out);
      return;
    }
    constexpr int kSteps = kBits == 4 ? 8 : 4;
    const Ints ones = _mm256_set1_epi16(1);
#pragma GCC unroll 2
    for (int first = 0; first < kQuads; first += kSteps) {
      Ints sums[kTokens][kPanels];
#pragma GCC unroll 8
      for (int q = first; q < first + kSteps; ++q) {
#pragma GCC unroll 4
        for (int t = 0; t < kTokens; ++t) {
          const Ints bytes = quad(x[t].elements + q * 4);
#pragma GCC unroll 2
          for (int p = 0; p < kPanels; ++p) {
            const Ints product = _mm256_maddubs_epi16(load_bytes(w[q][p]), bytes);
            sums[t][p] = q == first ? product : _mm256_add_epi16(sums[t][p], product);
            pin(sums[t][p]);
          }
        }
      }
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 2
        for (int p = 0; p < kPanels; ++p) {
          const Ints wide = _mm256_madd_epi16(sums[t][p], ones);
          out[t][p] = first == 0 ? wide : _mm256_add_epi32(out[t][p], wide);
        }
      }
    }
  }
  template <int kTokens, int kPanels>
  static void dots_two_scales(const uint8_t (&w)[kQuads][kPanels][kRows * 4],
                              const TwoScales* scales, const ActivationGroup* x,
                              Ints (&out)[kTokens][kPanels]) {
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) {
      int32_t minus_sums;
      memcpy(&minus_sums, x[t].minus_sums, sizeof minus_sums);
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p)
        out[t][p] = _mm256_madd_epi16(_mm256_set1_epi32(minus_sums), scales[p].both);
    }
#pragma GCC unroll 4
    for (int q = 0; q < kQuads; q += 2) {
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) {
        const Ints bytes[2] = {quad(x[t].elements + q * 4), quad(x[t].elements + q * 4 + 4)};
#pragma GCC unroll 2
        for (int p = 0; p < kPanels; ++p) {
          const Ints sum =
              _mm256_add_epi16(_mm256_maddubs_epi16(load_bytes(w[q][p]), bytes[0]),
                               _mm256_maddubs_epi16(load_bytes(w[q + 1][p]), bytes[1]));
          const Ints scale = q < kQuads / 2 ? scales[p].first : scales[p].second;
          out[t][p] = _mm256_add_epi32(out[t][p], _mm256_madd_epi16(sum, scale));
          pin(out[t][p]);
        }
      }
    }
  }

  static void quantise(const float* x, ActivationGroup& to) { quantise_group<Isa>(x, to); }

 private:
  // Keeps the compiler from reordering exact integer sums of a tile into trees that exceed the
  // registers.
  static void pin(__m256i& x) { asm("" : "+x"(x)); }
  template <int kTokens, int kPanels>
  static void signed_dots(const uint8_t (&w)[kQuads][kPanels][kRows * 4], const ActivationGroup* x,
                          Ints (&out)[kTokens][kPanels]) {
#pragma GCC unroll 8
    for (int q = 0; q < kQuads; ++q) {
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) {
        const Ints bytes = quad(x[t].elements + q * 4);
#pragma GCC unroll 2
        for (int p = 0; p < kPanels; ++p) {
          const Ints product = widen(signed_product(load_bytes(w[q][p]), bytes));
          out[t][p] = q == 0 ? product : _mm256_add_epi32(out[t][p], product);
          pin(out[t][p]);
        }
      }
    }
  }
  static __m256i quad(const int8_t* x) {
    int32_t bytes;
    memcpy(&bytes, x, sizeof bytes);
    return _mm256_set1_epi32(bytes);
  }
  static __m256i product(Bytes w, const int8_t* x) { return _mm256_maddubs_epi16(w, quad(x)); }
  static __m256i two_quads(const Bytes* w, const int8_t* x) {
    return _mm256_add_epi16(product(w[0], x), product(w[1], x + 4));
  }
  static __m256i four_quads(const Bytes* w, const int8_t* x) {
    return _mm256_add_epi16(two_quads(w, x), two_quads(w + 2, x + 8));
  }
  static Ints widen(__m256i a) { return _mm256_madd_epi16(a, _mm256_set1_epi16(1)); }
  // |w| * (x with the sign of w); w = -128 is 128 as an unsigned byte.
  static __m256i signed_product(Bytes w, __m256i x) {
    return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
  }
};

}  // namespace headrace::cpu::gemm::avx2
