// Integer products on AVX2. Included only below target_avx2.h, before flash-inl.h.
#pragma once

#include "backends/cpu/attention/flash/integer_products_256-inl.h"

namespace headrace::cpu::flash {

template <>
struct Words<cpu::avx2::Isa> {
  static __m256i round(__m256 x) { return _mm256_cvtps_epi32(x); }
  static void store(int16_t* to, __m256i x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
  }
  static uint32_t sum(__m256i x) { return sum_of_words<cpu::avx2::Isa>(x); }
  // f16 in the low and in the high half of each word.
  static void unpack_halves(const uint32_t* words, __m256& low, __m256& high) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
    const __m256i lows = _mm256_and_si256(x, _mm256_set1_epi32(0xffff));
    const __m256i highs = _mm256_srli_epi32(x, 16);
    // By lanes of 128 bits: {lows 0-3, highs 0-3}, {lows 4-7, highs 4-7}.
    const __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32(lows, highs), 0xD8);
    low = _mm256_cvtph_ps(_mm256_castsi256_si128(both));
    high = _mm256_cvtph_ps(_mm256_extracti128_si256(both, 1));
  }
};

template <>
struct IntegerProducts<cpu::avx2::Isa> : Products256<cpu::avx2::Isa> {
  static constexpr uint32_t kIsa = HEADRACE_ISA_AVX2;
  static constexpr int kGroup = Products256::kGroup<4>;
};
template <>
struct ZeroPointProducts<cpu::avx2::Isa> : Products256<cpu::avx2::Isa> {};

}  // namespace headrace::cpu::flash
