// Sixteen floats. Included only below target_avx512.h, target_avx512bf16.h or target_avx512vnni.h.
// The including file sets the namespace, so that instruction sets never share a symbol.
#include <immintrin.h>

#include "backends/cpu/simd/element.h"
#include "backends/cpu/simd/units-inl.h"

#ifndef HEADRACE_AVX512_NAMESPACE
#error "define HEADRACE_AVX512_NAMESPACE before including vec_avx512.h"
#endif

namespace headrace::cpu::HEADRACE_AVX512_NAMESPACE {

struct Vec {
  static constexpr int kWidth = 16;
  using F = __m512;
  using I = __m512i;

  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static F load(const Bf16* p) {
    return bf16_to_float(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F load(const F16* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F load(const Int8* p) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static F load(const E4m3* p) {
    return e4m3_to_float(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static void load_even_odd(const Bf16* p, F& even, F& odd) {
    const I pairs = _mm512_loadu_si512(p);
    even = from_bits(_mm512_slli_epi32(pairs, 16));
    odd = from_bits(_mm512_and_si512(pairs, _mm512_set1_epi32(-0x10000)));
  }
  static F load_partial(const float* p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
  static F load_partial(const Bf16* p, int n) {
    return bf16_to_float(_mm256_maskz_loadu_epi16(first_lanes(n), p));
  }
  static F load_partial(const F16* p, int n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p));
  }
  static F load_partial(const Int8* p, int n) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(first_lanes(n), p)));
  }
  static F load_partial(const E4m3* p, int n) {
    return e4m3_to_float(_mm_maskz_loadu_epi8(first_lanes(n), p));
  }

  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static void store(Bf16* p, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bf16_from(x));
  }
  static void store(F16* p, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), f16_from(x));
  }
  static void store_partial(float* p, F x, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), x); }
  static void store_partial(Bf16* p, F x, int n) {
    _mm256_mask_storeu_epi16(p, first_lanes(n), bf16_from(x));
  }
  static void store_partial(F16* p, F x, int n) {
    _mm256_mask_storeu_epi16(p, first_lanes(n), f16_from(x));
  }

  static F load_twice(const float* p) {
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7),
                                 _mm512_castps256_ps512(_mm256_loadu_ps(p)));
  }
  static F swap_pairs(F a) { return _mm512_permute_ps(a, 0xB1); }

  static void interleave(F& even, F& odd) {
    const I low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const I high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    const F first = _mm512_permutex2var_ps(even, low, odd);
    odd = _mm512_permutex2var_ps(even, high, odd);
    even = first;
  }

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F lane_index() {
    return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F abs(F a) { return _mm512_andnot_ps(set1(-0.0f), a); }
  static F copysign(F magnitude, F sign) {
    return _mm512_or_ps(abs(magnitude), _mm512_and_ps(set1(-0.0f), sign));
  }
  static F select_less(F a, F b, F x, F y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
  }
  static F select_bytes(const uint8_t* keep, F x, F y) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(keep));
    return _mm512_mask_blend_ps(_mm_test_epi8_mask(bytes, bytes), y, x);
  }

  static I bits(F a) { return _mm512_castps_si512(a); }
  static F from_bits(I a) { return _mm512_castsi512_ps(a); }
  static I add_int(I a, I b) { return _mm512_add_epi32(a, b); }
  static I sub_int(I a, I b) { return _mm512_sub_epi32(a, b); }
  static I set1_int(int32_t a) { return _mm512_set1_epi32(a); }
  template <int kBits>
  static I shift_left(I a) {
    return _mm512_slli_epi32(a, kBits);
  }
  template <int kBits>
  static I shift_right(I a) {
    return _mm512_srai_epi32(a, kBits);
  }

  // By halves, because g++ 12 has false warnings inside its _mm512_reduce_*.
  static float sum(F a) {
    const __m256 s8 = _mm256_add_ps(low_half(a), high_half(a));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  // Eight sums at once, each in the order of sum().
  static void sums(const F* a, float* to) {
    F half[4], quarter[2];  // 128-bit lanes of a pair, of four
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      half[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x44),
                              _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xEE));
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i)
      quarter[i] = _mm512_add_ps(_mm512_shuffle_f32x4(half[2 * i], half[2 * i + 1], 0x88),
                                 _mm512_shuffle_f32x4(half[2 * i], half[2 * i + 1], 0xDD));
    const F pairs = _mm512_add_ps(_mm512_unpacklo_ps(quarter[0], quarter[1]),
                                  _mm512_unpackhi_ps(quarter[0], quarter[1]));
    const F all = _mm512_add_ps(pairs, _mm512_permute_ps(pairs, 0x4E));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm256_storeu_ps(to, low_half(_mm512_permutexvar_ps(order, all)));
  }
  static float max_lane(F a) {
    const __m256 s8 = _mm256_max_ps(low_half(a), high_half(a));
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }

  static void transpose(F (&r)[kWidth]) {
    F t[16];
    for (int i = 0; i < 16; i += 2) {
      t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
      r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xEE);
      r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
      r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
    }
    // Now 4 x 4 blocks of 128-bit lanes: transpose the lanes of rows i, i + 4, i + 8, i + 12.
    for (int i = 0; i < 4; ++i) {
      const F a = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
      const F b = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xDD);
      const F c = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
      const F d = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xDD);
      t[i] = _mm512_shuffle_f32x4(a, c, 0x88);
      t[i + 8] = _mm512_shuffle_f32x4(a, c, 0xDD);
      t[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
      t[i + 12] = _mm512_shuffle_f32x4(b, d, 0xDD);
    }
    for (int i = 0; i < 16; ++i) r[i] = t[i];
  }

 private:
  static __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
  static __m256 low_half(F a) { return _mm512_castps512_ps256(a); }
  static __m256 high_half(F a) {
    return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1));
  }
  static F bf16_to_float(__m256i half) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  // As f16 bits the code is 2^-8 of the value, subnormals included. The last code is NaN.
  static F e4m3_to_float(__m128i codes) {
    const __m256i wide = _mm256_cvtepi8_epi16(codes);
    const __m256i half = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(-0x4001));
    const __m256i last = _mm256_set1_epi16(0x7f);
    const __mmask16 is_number = _mm256_cmpneq_epi16_mask(_mm256_and_si256(wide, last), last);
    return _mm512_mask_cvtph_ps(_mm512_set1_ps(__builtin_nanf("")), is_number, half);
  }
  static __m256i f16_from(F x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
  static __m256i bf16_from(F x) {
    const I b = bits(x);
    const I high = _mm512_srli_epi32(b, 16);
    const I odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const I rounded = _mm512_srli_epi32(
        _mm512_add_epi32(b, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    const I quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(is_nan, rounded, quiet));
  }
};

// 12 x 32 register tile: 24 accumulators, 2 columns of B, 1 broadcast of A: 27 of 32 registers.
struct Isa : FloatUnits<Vec> {
  using FloatIsa = Isa;
  static constexpr int kMr = 12;
  static constexpr int kNv = 2;
  static constexpr int kKeysAtOnce = 4;    // rows of K per step of the direct path
  static constexpr int kValueVectors = 4;  // columns of V per step, in vectors
};

}  // namespace headrace::cpu::HEADRACE_AVX512_NAMESPACE
