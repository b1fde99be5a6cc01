// Quantizes activations to 8 bits with 256-bit registers. Included below target_avx2.h and higher.
#pragma once

#include "backends/cpu/gemm/layout.h"

namespace headrace::cpu::gemm {

// q: 32 integers within [-127, 127].
template <class Isa>
inline void store_elements(const __m256i (&q)[4], float scale, ActivationGroup& to) {
  // Packing works within register halves; the permutation restores the order.
  const __m256i bytes =
      _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.elements),
                      _mm256_permutevar8x32_epi32(bytes, order));
  const __m256i pairs =
      _mm256_hadd_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]));
  const __m256i quads = _mm256_hadd_epi32(pairs, pairs);
  const __m128i sums =
      _mm_add_epi32(_mm256_castsi256_si128(quads), _mm256_extracti128_si256(quads, 1));
  const int32_t first = _mm_extract_epi32(sums, 0), second = _mm_extract_epi32(sums, 1);
  to.scale = scale;
  to.scaled_sum = scale * static_cast<float>(first + second);
  to.minus_sums[0] = static_cast<int16_t>(-first);
  to.minus_sums[1] = static_cast<int16_t>(-second);
  to.unused[0] = to.unused[1] = 0;
}

template <class Isa>
inline float sum_of_lanes(__m256 x) {
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

template <class Isa>
inline void quantise_group(const float* x, ActivationGroup& to) {
  const __m256i magnitude_bits = _mm256_set1_epi32(0x7fffffff);
  __m256 v[4];
  __m256i largest = _mm256_setzero_si256();  // compared as bits: NaN is above infinity
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_loadu_ps(x + 8 * i);
    largest =
        _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude_bits));
  }
  __m128i most =
      _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0x4e));
  most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0xb1));
  const int32_t bits = _mm_cvtsi128_si32(most);
  const float magnitude = _mm_cvtss_f32(_mm_castsi128_ps(most));
  if (bits >= 0x7f800000 || magnitude < kSmallestMagnitude) {
    memset(&to, 0, sizeof to);
    if (bits >= 0x7f800000) to.scale = to.scaled_sum = __builtin_nanf("");
    return;
  }
  const __m256 factor = _mm256_set1_ps(127.0f / magnitude);
  __m256i q[4];
  __m256 products = _mm256_setzero_ps(), squares = _mm256_setzero_ps();
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m256 y = _mm256_mul_ps(v[i], factor);
    q[i] = _mm256_cvtps_epi32(y);
    const __m256 rounded = _mm256_cvtepi32_ps(q[i]);
    products = _mm256_add_ps(products, _mm256_mul_ps(y, rounded));
    squares = _mm256_add_ps(squares, _mm256_mul_ps(rounded, rounded));
  }
  const float fit = sum_of_lanes<Isa>(products) / sum_of_lanes<Isa>(squares);
  store_elements<Isa>(q, magnitude / 127.0f * fit, to);
}

}  // namespace headrace::cpu::gemm
