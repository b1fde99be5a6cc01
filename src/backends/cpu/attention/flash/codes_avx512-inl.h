// Products of few rows with 8-bit and 4-bit codes as integers, by AVX-512 VNNI. Q becomes 16-bit
// words times a power of two, P words times 1 / 32767 of its largest: as precise as f16 and bf16
// near the largest of a row. A product of two words with two codes is one instruction where floats
// need two conversions and two FMAs. Sums are exact. Included only below target_avx512.h, before
// flash-inl.h.
#pragma once

#include "backends/cpu/attention/flash/integer_products-inl.h"

namespace headrace::cpu::flash {

template <>
struct IntegerProducts<cpu::avx512::Isa> {
  static constexpr bool kExists = true;
  using Vec = cpu::avx512::Vec;

  // Words of a row of `dim` floats, zeros behind it. 4-bit codes: of each group of 128 elements
  // first 4i, then 4i + 1, 4i + 2 and 4i + 3, as the shifted words of their pairs come.
  template <bool kIs4>
  static void load_row(const float* row, int64_t dim, WordRows rows, int64_t r) {
    constexpr int64_t kW = Vec::kWidth;
    const auto load = [&](int64_t i) {
      return i + kW <= dim
                 ? Vec::load(row + i)
                 : Vec::load_partial(row + i, static_cast<int>(std::max(dim - i, int64_t{0})));
    };
    __m512 largest = Vec::zero(), invalid = Vec::zero();  // `invalid`: NaN for NaN and infinity
    for (int64_t i = 0; i < dim; i += kW) {
      largest = _mm512_max_ps(largest, Vec::abs(load(i)));
      invalid = _mm512_fmadd_ps(load(i), Vec::zero(), invalid);
    }
    const WordScale scale = scale_of(Vec::max_lane(largest), Vec::sum(invalid));
    int16_t* words = rows.words + r * rows.stride;
    __m512i sum = _mm512_setzero_si512();
    for (int64_t i = 0; i < rows.stride; i += kW) {
      const __m512i n = _mm512_cvtps_epi32(_mm512_mul_ps(load(i), Vec::set1(scale.inverse)));
      sum = _mm512_add_epi32(sum, n);
      const __m256i packed = _mm512_cvtepi32_epi16(n);
      if constexpr (kIs4) {
        alignas(32) int16_t part[kW];
        _mm256_store_si256(reinterpret_cast<__m256i*>(part), packed);
        int16_t* group = words + i / 128 * 128 + i % 128 / 4;
        for (int64_t j = 0; j < kW; ++j) group[j % 4 * 32 + j / 4] = part[j];
      } else {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + i), packed);
      }
    }
    rows.factors[r] = scale.factor;
    rows.offsets[r] = kIs4 ? 8 * sum_of(sum) : 0;
  }

  // The probabilities [begin, end) of a tile of kDirectKeys, zeros around them.
  template <bool kIs4>
  static void load_weights(const float* p, Span span, WordRows rows, int64_t r) {
    __m512 part[4], largest = Vec::zero(), invalid = Vec::zero();
    for (int i = 0; i < 4; ++i) {
      const uint64_t keys = (~uint64_t{0} << span.begin) & (~uint64_t{0} >> (64 - span.end));
      part[i] = _mm512_maskz_loadu_ps(static_cast<__mmask16>(keys >> (16 * i)), p + 16 * i);
      largest = _mm512_max_ps(largest, Vec::abs(part[i]));
      invalid = _mm512_fmadd_ps(part[i], Vec::zero(), invalid);
    }
    // The largest becomes 2^15 - 1. Weights below 2^-100 lose bits: a row that has no others is 0.
    const float most = std::max(Vec::max_lane(largest), 0x1p-100f) + Vec::sum(invalid);
    const WordScale scale{32767.0f / most, most / 32767.0f};
    __m512i sum = _mm512_setzero_si512();
    int16_t* words = rows.words + r * rows.stride;
    for (int i = 0; i < 4; ++i) {
      const __m512i n = _mm512_cvtps_epi32(_mm512_mul_ps(part[i], Vec::set1(scale.inverse)));
      sum = _mm512_add_epi32(sum, n);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + 16 * i), _mm512_cvtepi32_epi16(n));
    }
    rows.factors[r] = scale.factor;
    rows.offsets[r] = kIs4 ? 8 * sum_of(sum) : 0;
  }

  // s[kRows][4] = Q K^T of 4 keys.
  template <int kRows, bool kIs4>
  [[gnu::noinline]] static void dot_keys(WordRows q, int64_t first_row, const Int8* const* keys,
                                         int64_t dim, float* s) {
    constexpr int64_t kStep = kIs4 ? 128 : 32;  // elements
    __m512i acc[16];                            // [row][key]
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) acc[i] = _mm512_setzero_si512();
    const int16_t* words = q.words + first_row * q.stride;
    for (int64_t d = 0; d < dim; d += kStep) {
      __m512i code[4];
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k)
        code[k] =
            kIs4 ? load_bytes(keys[k] + d / 2, (dim - d) / 2) : load_words(keys[k] + d, dim - d);
#pragma GCC unroll 4
      for (int part = 0; part < (kIs4 ? 4 : 1); ++part) {
        __m512i x[4];
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) x[k] = kIs4 ? nibbles(code[k], part) : code[k];
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const __m512i row = _mm512_loadu_si512(words + r * q.stride + d + 32 * part);
#pragma GCC unroll 4
          for (int k = 0; k < 4; ++k) add_products(acc[4 * r + k], row, x[k]);
        }
      }
    }
    const __m512i sums = sums_of(acc);
    alignas(64) int32_t all[16];
    _mm512_store_si512(all, sums);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m128i row = _mm_sub_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(all) + r),
                                        _mm_set1_epi32(q.offsets[first_row + r]));
      _mm_storeu_ps(s + r * kDirectKeys,
                    _mm_mul_ps(_mm_cvtepi32_ps(row), _mm_set1_ps(q.factors[first_row + r])));
    }
  }

  // o[kRows] = o * row_scale + P V for 64 columns of 8-bit codes from `first_column`, or for one
  // half of each 32 of 128 columns of 4-bit codes, over keys [begin, end) in pairs.
  template <int kRows, bool kIs4, class Next>
  [[gnu::noinline]] static void weigh_columns(WordRows p, int64_t first_row,
                                              const Int8* const* values, Span keys,
                                              const Columns& columns, Fetcher<Next> next, float* o,
                                              int64_t o_stride, const float* row_scale) {
    __m512i acc[4 * kRows];
#pragma GCC unroll 16
    for (int i = 0; i < 4 * kRows; ++i) acc[i] = _mm512_setzero_si512();
    const int64_t first_byte = kIs4 ? columns.first / 2 : columns.first;
    const int64_t bytes = (kIs4 ? columns.dim / 2 : columns.dim) - first_byte;
    const int16_t* words = p.words + first_row * p.stride;
    for (int key = keys.begin / 2 * 2; key < keys.end; key += 2) {
      if (key % 4 == 0) next.fetch_keys();
      next.fetch_near(values[key + kNearKeys] + first_byte);
      next.fetch_near(values[key + kNearKeys + 1] + first_byte);
      const __m512i a = load_bytes(values[key] + first_byte, bytes);
      const __m512i b = load_bytes(values[key + 1] + first_byte, bytes);
      __m512i pair[4];
      if constexpr (kIs4) {
        const __m512i both =
            columns.is_upper_half ? _mm512_unpackhi_epi16(a, b) : _mm512_unpacklo_epi16(a, b);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) pair[i] = nibbles(both, i);
      } else {
        const __m512i low = _mm512_unpacklo_epi8(a, b), high = _mm512_unpackhi_epi8(a, b);
        pair[0] = _mm512_cvtepi8_epi16(_mm512_castsi512_si256(low));
        pair[1] = _mm512_cvtepi8_epi16(_mm512_castsi512_si256(high));
        pair[2] = _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(low, 1));
        pair[3] = _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(high, 1));
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        int32_t weights;
        memcpy(&weights, words + r * p.stride + key, sizeof weights);
        const __m512i both = _mm512_set1_epi32(weights);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) add_products(acc[4 * r + i], pair[i], both);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      __m512i* sums = acc + 4 * r;
      if constexpr (kIs4)
        order_nibbles(sums);
      else
        order_bytes(sums);
      float* row = o + r * o_stride + columns.first + (columns.is_upper_half ? 16 : 0);
      const int64_t step = kIs4 ? 32 : 16;
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        if (columns.first + step * i >= columns.dim) break;
        const __m512 sum = _mm512_cvtepi32_ps(
            _mm512_sub_epi32(sums[i], _mm512_set1_epi32(p.offsets[first_row + r])));
        const __m512 added = _mm512_mul_ps(sum, Vec::set1(p.factors[first_row + r]));
        Vec::store(row + step * i,
                   Vec::fma(Vec::load(row + step * i), Vec::set1(row_scale[r]), added));
      }
    }
  }

 private:
  static constexpr int kNearKeys = kDirectAddresses<Int8> - kDirectKeys;

  // In each lane: sum += the products of both words. As text: g++ 12 copies the sums around its
  // intrinsic, which is also not to be had without compiling all of this for VNNI.
  static void add_products(__m512i& sum, __m512i a, __m512i b) {
    asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  }
  // The largest power of two that keeps |x| below 2^15, but none above 2^115: what is smaller
  // than 2^-115 of anything loses bits.
  static WordScale scale_of(float largest, float invalid) {
    if (!(largest + invalid < std::numeric_limits<float>::infinity()))
      return {0.0f, std::numeric_limits<float>::quiet_NaN()};
    int exponent = 0;
    std::frexp(largest, &exponent);  // largest < 2^exponent
    const int shift = 15 - std::max(exponent, -100);
    const float factor = std::ldexp(1.0f, -shift);
    // 2^15 - 1/2 and more would round to 2^15, which no word holds.
    const bool fits = largest * std::ldexp(1.0f, shift) < 32767.5f;
    return fits ? WordScale{std::ldexp(1.0f, shift), factor}
                : WordScale{std::ldexp(1.0f, shift - 1), 2.0f * factor};
  }
  [[gnu::always_inline]] static __m512i load_bytes(const Int8* from, int64_t left) {
    if (left >= 64) return _mm512_loadu_si512(from);
    return _mm512_maskz_loadu_epi8(left <= 0 ? 0 : ~uint64_t{0} >> (64 - left), from);
  }
  [[gnu::always_inline]] static __m512i load_words(const Int8* from, int64_t left) {
    if (left >= 32)
      return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    return _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(~uint32_t{0} >> (32 - left), from));
  }
  // Code i of the four in each word.
  [[gnu::always_inline]] static __m512i nibbles(__m512i words, int i) {
    const __m512i shifted = _mm512_srli_epi16(words, static_cast<unsigned>(4 * i));
    return i == 3 ? shifted : _mm512_and_si512(shifted, _mm512_set1_epi16(15));
  }
  static int32_t sum_of(__m512i x) {
    alignas(64) int32_t lanes[16];
    _mm512_store_si512(lanes, x);
    int32_t sum = 0;
    for (const int32_t lane : lanes) sum += lane;
    return sum;
  }
  // Lane i: the sum of the lanes of acc[i].
  [[gnu::always_inline]] static __m512i sums_of(const __m512i* acc) {
    __m512i pairs[8], fours[4];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i)
      pairs[i] = _mm512_add_epi32(_mm512_unpacklo_epi32(acc[2 * i], acc[2 * i + 1]),
                                  _mm512_unpackhi_epi32(acc[2 * i], acc[2 * i + 1]));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      fours[i] = _mm512_add_epi32(_mm512_unpacklo_epi64(pairs[2 * i], pairs[2 * i + 1]),
                                  _mm512_unpackhi_epi64(pairs[2 * i], pairs[2 * i + 1]));
    const __m512i low = _mm512_add_epi32(_mm512_shuffle_i32x4(fours[0], fours[1], 0x44),
                                         _mm512_shuffle_i32x4(fours[0], fours[1], 0xEE));
    const __m512i high = _mm512_add_epi32(_mm512_shuffle_i32x4(fours[2], fours[3], 0x44),
                                          _mm512_shuffle_i32x4(fours[2], fours[3], 0xEE));
    return _mm512_add_epi32(_mm512_shuffle_i32x4(low, high, 0x88),
                            _mm512_shuffle_i32x4(low, high, 0xDD));
  }
  // From columns {0-7, 16-23}, {8-15, 24-31}, {32-39, 48-55}, {40-47, 56-63}.
  [[gnu::always_inline]] static void order_bytes(__m512i* x) {
#pragma GCC unroll 2
    for (int i = 0; i < 4; i += 2) {
      const __m512i first = _mm512_shuffle_i32x4(x[i], x[i + 1], 0x44);
      x[i + 1] = _mm512_shuffle_i32x4(x[i], x[i + 1], 0xEE);
      x[i] = first;
    }
  }
  // Lane (L, w) of x[j] is column 32 L + 4 w + j: to x[L], lane 4 w + j.
  [[gnu::always_inline]] static void order_nibbles(__m512i* x) {
    const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]);
    const __m512i c = _mm512_unpacklo_epi32(x[2], x[3]), d = _mm512_unpackhi_epi32(x[2], x[3]);
    const __m512i w0 = _mm512_unpacklo_epi64(a, c), w1 = _mm512_unpackhi_epi64(a, c);
    const __m512i w2 = _mm512_unpacklo_epi64(b, d), w3 = _mm512_unpackhi_epi64(b, d);
    const __m512i e = _mm512_shuffle_i32x4(w0, w1, 0x44), f = _mm512_shuffle_i32x4(w0, w1, 0xEE);
    const __m512i g = _mm512_shuffle_i32x4(w2, w3, 0x44), h = _mm512_shuffle_i32x4(w2, w3, 0xEE);
    x[0] = _mm512_shuffle_i32x4(e, g, 0x88);
    x[1] = _mm512_shuffle_i32x4(e, g, 0xDD);
    x[2] = _mm512_shuffle_i32x4(f, h, 0x88);
    x[3] = _mm512_shuffle_i32x4(f, h, 0xDD);
  }
};

}  // namespace headrace::cpu::flash
