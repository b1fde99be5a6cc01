// AVX-512 with BF16 dot products: the floats of vec_avx512.h, and units of two bf16. Included only
// below target_avx512bf16.h.
#pragma once

#define HEADRACE_AVX512_NAMESPACE avx512bf16
#include "backends/cpu/simd/vec_avx512.h"

namespace headrace::cpu::avx512bf16 {

// Q and K stay bf16: their products are exact, the sums are float. In the forward P and V are
// floats (FloatIsa): rounding P to bf16 would lose most of the accuracy of the float softmax. The
// backward, where all implementations round P and dS to bf16, uses pairs for all products.
// VDPBF16PS treats denormal inputs as zero and flushes denormal products and sums.
struct PairIsa {
  using FloatIsa = avx512bf16::Isa;
  using Vec = avx512bf16::Vec;
  using F = Vec::F;
  using Unit = uint32_t;
  static constexpr int kPair = 2;
  static constexpr int kMr = 12;
  static constexpr int kNv = 2;
  static constexpr int kKeysAtOnce = 4;    // rows of K per step of the direct path
  static constexpr int kValueVectors = 4;  // columns of V per step, in vectors

  // By memcpy, because the backward stores units in memory of floats.
  static F broadcast(const Unit* p) {
    int32_t unit;
    memcpy(&unit, p, sizeof unit);
    return Vec::from_bits(_mm512_set1_epi32(unit));
  }
  static F load_units(const void* p) { return _mm512_loadu_ps(p); }
  static F madd(F a, F b, F c) { return _mm512_dpbf16_ps(c, as_bf16(a), as_bf16(b)); }

  static F load_row(const Bf16* row) { return load_units(row); }
  static F load_row_partial(const Bf16* row, int n) {
    return Vec::from_bits(_mm512_maskz_loadu_epi16(first(n), row));
  }

  template <class>
  static constexpr int kBlock = 1;
  static void load_block(const Bf16* row, F (&x)[1]) { x[0] = load_row(row); }

  static void copy_row(const Bf16* row, int64_t elements, Unit* units, int64_t num_units) {
    for (int64_t i = 0; i < num_units; i += Vec::kWidth) {
      const int64_t left = elements - 2 * i;
      const int n = static_cast<int>(left < 0 ? 0 : left < 32 ? left : 32);
      _mm512_storeu_si512(units + i, _mm512_maskz_loadu_epi16(first(n), row + 2 * i));
    }
  }

  // Two rows as one step of a reduction over rows; rows outside of [begin, end) are not read and
  // count as zeros.
  static void copy_step(const Bf16* rows, int64_t stride, int64_t begin, int64_t end,
                        int64_t elements, Unit* units, int64_t num_units) {
    const bool has_even = begin <= 0 && end > 0, has_odd = begin <= 1 && end > 1;
    const Bf16* next = has_odd ? rows + stride : rows;
    for (int64_t i = 0; i < num_units; i += Vec::kWidth) {
      const int64_t left = elements - i;
      const int n = static_cast<int>(left < 0 ? 0 : left < 16 ? left : 16);
      const auto even = _mm256_maskz_loadu_epi16(first16(has_even ? n : 0), rows + i);
      const auto odd = _mm256_maskz_loadu_epi16(first16(has_odd ? n : 0), next + i);
      _mm512_storeu_si512(units + i,
                          _mm512_or_si512(_mm512_cvtepu16_epi32(even),
                                          _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16)));
    }
  }

  // Rounds row [num_floats] (a multiple of 32) to pairs of neighbouring elements.
  static void round_row(const float* row, Unit* units, int64_t num_floats) {
    for (int64_t i = 0; i < num_floats; i += 32)
      store(units + i / 2, _mm512_cvtne2ps_pbh(Vec::load(row + i + 16), Vec::load(row + i)));
  }
  // Rounds two rows of floats to pairs of one element of each; `to` may be one of them.
  static void round_step(const float* even, const float* odd, float* to, int64_t num_floats) {
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (int64_t i = 0; i < num_floats; i += 16) {
      const __m512bh both = _mm512_cvtne2ps_pbh(Vec::load(odd + i), Vec::load(even + i));
      _mm512_storeu_si512(to + i, _mm512_permutexvar_epi16(order, reinterpret_cast<__m512i>(both)));
    }
  }

 private:
  static __mmask32 first(int n) { return static_cast<__mmask32>((uint64_t{1} << n) - 1); }
  static __mmask16 first16(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
  static void store(Unit* to, __m512bh x) { _mm512_storeu_si512(to, reinterpret_cast<__m512i>(x)); }
  static __m512bh as_bf16(F x) { return reinterpret_cast<__m512bh>(x); }
};

}  // namespace headrace::cpu::avx512bf16
