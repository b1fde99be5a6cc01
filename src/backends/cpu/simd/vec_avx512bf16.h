// AVX-512 with BF16 dot products: the floats of vec_avx512.h, and products in which a unit is two
// bf16. Included only below target_avx512bf16.h.
#pragma once

#define HEADRACE_AVX512_NAMESPACE avx512bf16
#include "backends/cpu/simd/vec_avx512.h"

namespace headrace::cpu::avx512bf16 {

// Q, K, V stay bf16 and P is rounded to bf16; sums are float. VDPBF16PS reads denormal bf16 as
// zero.
struct PairIsa {
  using Vec = avx512bf16::Vec;
  using F = Vec::F;
  using Unit = uint32_t;
  static constexpr int kPair = 2;
  static constexpr int kMr = 12;
  static constexpr int kNv = 2;

  static F broadcast(const Unit* p) {
    return Vec::from_bits(_mm512_set1_epi32(static_cast<int32_t>(*p)));
  }
  static F load_units(const void* p) { return _mm512_loadu_ps(p); }
  static F madd(F a, F b, F c) { return _mm512_dpbf16_ps(c, as_bf16(a), as_bf16(b)); }

  static F load_row(const Bf16* row) { return load_units(row); }
  static F load_row_partial(const Bf16* row, int n) {
    return Vec::from_bits(_mm512_maskz_loadu_epi16(first(n), row));
  }

  // Units of one step over two rows: low halves from `row`, high halves from `next` (null: zeros).
  static F load_row_pair(const Bf16* row, const Bf16* next, int columns) {
    const auto mask = static_cast<__mmask16>(first(columns));
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, row));
    if (next == nullptr) return Vec::from_bits(low);
    const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, next));
    return Vec::from_bits(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
  }

  static void copy_row(const Bf16* row, int64_t elements, Unit* units, int64_t num_units) {
    for (int64_t i = 0; i < num_units; i += Vec::kWidth) {
      const int64_t left = elements - 2 * i;
      const int n = static_cast<int>(left < 0 ? 0 : left < 32 ? left : 32);
      _mm512_storeu_si512(units + i, _mm512_maskz_loadu_epi16(first(n), row + 2 * i));
    }
  }

  // In place: the bf16 of a vector end before the next vector of floats begins.
  static void to_units(float* p, int begin, int end) {
    auto* units = reinterpret_cast<char*>(p);
    for (int i = begin / Vec::kWidth * Vec::kWidth; i < end; i += Vec::kWidth) {
      const __m256i half = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(Vec::load(p + i)));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(units + 2 * i), half);
    }
  }

 private:
  static __mmask32 first(int n) { return static_cast<__mmask32>((uint64_t{1} << n) - 1); }
  static __m512bh as_bf16(F x) { return reinterpret_cast<__m512bh>(x); }
};

}  // namespace headrace::cpu::avx512bf16
