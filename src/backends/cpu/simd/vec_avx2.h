// Eight floats. Included only below target_avx2.h.
#pragma once

#include <immintrin.h>
#include <string.h>

#include "backends/cpu/simd/element.h"
#include "backends/cpu/simd/units-inl.h"

namespace headrace::cpu::avx2 {

struct Vec {
  static constexpr int kWidth = 8;
  using F = __m256;
  using I = __m256i;

  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static F load(const Bf16* p) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  static F load(const F16* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static F load(const Int8* p) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  // As f16 bits the code is 2^-8 of the value, subnormals included. The last code is NaN.
  static F load(const E4m3* p) {
    const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    const __m128i half = _mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16(-0x4001));
    const __m128i last = _mm_set1_epi16(0x7f);
    const __m128i is_nan = _mm_cmpeq_epi16(_mm_and_si128(wide, last), last);
    return _mm256_cvtph_ps(_mm_or_si128(half, is_nan));
  }
  static void load_even_odd(const Bf16* p, F& even, F& odd) {
    const I pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    even = from_bits(_mm256_slli_epi32(pairs, 16));
    odd = from_bits(_mm256_and_si256(pairs, _mm256_set1_epi32(-0x10000)));
  }
  static F load_partial(const float* p, int n) { return _mm256_maskload_ps(p, first_lanes(n)); }
  template <class T>
  static F load_partial(const T* p, int n) {
    T buffer[kWidth] = {};
    memcpy(buffer, p, static_cast<size_t>(n) * sizeof(T));
    return load(buffer);
  }

  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static void store(Bf16* p, F x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bf16_from(x)); }
  static void store(F16* p, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  static void store_partial(float* p, F x, int n) { _mm256_maskstore_ps(p, first_lanes(n), x); }
  template <class T>
  static void store_partial(T* p, F x, int n) {
    T buffer[kWidth];
    store(buffer, x);
    memcpy(p, buffer, static_cast<size_t>(n) * sizeof(T));
  }

  static F load_twice(const float* p) {
    return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)),
                                    _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
  }
  static F swap_pairs(F a) { return _mm256_permute_ps(a, 0xB1); }

  static void interleave(F& even, F& odd) {
    const F low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);
    even = _mm256_permute2f128_ps(low, high, 0x20);
    odd = _mm256_permute2f128_ps(low, high, 0x31);
  }

  static F zero() { return _mm256_setzero_ps(); }
  static F set1(float x) { return _mm256_set1_ps(x); }
  static F lane_index() { return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F min(F a, F b) { return _mm256_min_ps(a, b); }
  static F abs(F a) { return _mm256_andnot_ps(set1(-0.0f), a); }
  static F copysign(F magnitude, F sign) {
    return _mm256_or_ps(abs(magnitude), _mm256_and_ps(set1(-0.0f), sign));
  }
  static F select_less(F a, F b, F x, F y) {
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
  }
  static F select_bytes(const uint8_t* keep, F x, F y) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(keep));
    const I drop = _mm256_cmpeq_epi32(_mm256_cvtepu8_epi32(bytes), _mm256_setzero_si256());
    return _mm256_blendv_ps(x, y, _mm256_castsi256_ps(drop));
  }

  static I bits(F a) { return _mm256_castps_si256(a); }
  static F from_bits(I a) { return _mm256_castsi256_ps(a); }
  static I add_int(I a, I b) { return _mm256_add_epi32(a, b); }
  static I sub_int(I a, I b) { return _mm256_sub_epi32(a, b); }
  static I set1_int(int32_t a) { return _mm256_set1_epi32(a); }
  template <int kBits>
  static I shift_left(I a) {
    return _mm256_slli_epi32(a, kBits);
  }
  template <int kBits>
  static I shift_right(I a) {
    return _mm256_srai_epi32(a, kBits);
  }

  static float sum(F a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  // to[i] = sum(a[i]), in the same order of additions.
  static void sums(const F* a, float* to) {
    F pairs[4];  // sums of halves of a[i] and a[i + 4]: four partial sums of each
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      pairs[i] = _mm256_add_ps(_mm256_permute2f128_ps(a[i], a[i + 4], 0x20),
                               _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
    const F first = _mm256_add_ps(_mm256_unpacklo_ps(pairs[0], pairs[1]),
                                  _mm256_unpackhi_ps(pairs[0], pairs[1]));
    const F second = _mm256_add_ps(_mm256_unpacklo_ps(pairs[2], pairs[3]),
                                   _mm256_unpackhi_ps(pairs[2], pairs[3]));
    store(to, _mm256_add_ps(_mm256_shuffle_ps(first, second, 0x44),
                            _mm256_shuffle_ps(first, second, 0xEE)));
  }
  static float max_lane(F a) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }

  static void transpose(F (&r)[kWidth]) {
    F t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
      t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
      u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xEE);
      u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
      u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
    }
    for (int i = 0; i < 4; ++i) {
      r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
      r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
  }

 private:
  static I first_lanes(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static __m128i bf16_from(F x) {
    const I b = bits(x);
    const I odd = _mm256_and_si256(_mm256_srli_epi32(b, 16), _mm256_set1_epi32(1));
    const I rounded = _mm256_srli_epi32(
        _mm256_add_epi32(b, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const I quiet = _mm256_or_si256(_mm256_srli_epi32(b, 16), _mm256_set1_epi32(0x40));
    const I is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const I words = _mm256_blendv_epi8(rounded, quiet, is_nan);
    const I packed = _mm256_packus_epi32(words, words);  // [0..3 0..3 | 4..7 4..7]
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
  }
};

// 6 x 16 register tile: 12 accumulators, 2 columns of B, 1 broadcast of A: 15 of 16 registers. 12
// independent chains cover 2 FMA ports x 4 to 5 cycles of latency.
struct Isa : FloatUnits<Vec> {
  using FloatIsa = Isa;
  static constexpr int kMr = 6;
  static constexpr int kNv = 2;
  static constexpr int kKeysAtOnce = 2;    // rows of K per step of the direct path
  static constexpr int kValueVectors = 2;  // columns of V per step, in vectors
};

}  // namespace headrace::cpu::avx2
