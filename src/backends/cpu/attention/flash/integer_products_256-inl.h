// Products of few rows with codes as integers in vectors of 256 bits: a word times a code, summed
// by pairs, is one instruction and an addition where floats need a conversion for 8 codes and an
// FMA for 8 products. Included only below target_avx2.h or target_avx512.h, before flash-inl.h.
#pragma once

#include "backends/cpu/attention/flash/integer_products-inl.h"

namespace headrace::cpu::flash {

template <class Isa>
inline uint32_t sum_of_words(__m256i x) {
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xB1))));
}

// Of codes of 8 bits with a sign, or of 4 or 2 bits without, on an instruction set with AVX2.
template <class Isa>
struct Products256 {
  // Codes of a 16-bit word.
  template <int kBits>
  static constexpr int kParts = kBits == 8 ? 1 : 16 / kBits;
  // Elements of 32 bytes, which a step multiplies.
  template <int kBits>
  static constexpr int kGroup = 256 / kBits;
  template <int kBits>
  static constexpr int kColumns = 32;
  template <int kBits>
  static constexpr bool kLoadsLines = false;

  // s[kRows][kDirectKeys] = Q K^T of the keys of `span`, in fours.
  template <int kRows, int kBits, class Fetcher>
  static void dot_keys(const WordRows& q, int64_t first_row, const PagedRows<Int8>& keys, Span span,
                       int64_t dim, Fetcher fetcher, float* s) {
    for (int key = span.begin / 4 * 4; key < span.end; key += 4) {
      fetcher.fetch(keys, key);
      // Two by two: the sums of 4 keys would need all 16 registers.
      for (int k = key; k < key + 4; k += 2)
        dot_pair<kRows, kBits>(q, first_row, keys.from(k), dim, s + k);
    }
  }

  // o[kRows] = o * row_scale + P V for columns [first_column, first_column + 32) below `dim`, over
  // keys [begin, end) in pairs.
  template <int kRows, int kBits, class Next>
  [[gnu::noinline]] static void weigh(const WordRows& p, int64_t first_row,
                                      const StridedRows<Int8>& values, Span keys,
                                      int64_t first_column, int64_t dim, Fetcher<Next> fetcher,
                                      float* o, int64_t o_stride, const float* row_scale) {
    __m256i sums[kRows][4];
    weigh_half<kRows, kBits, 0>(p, first_row, values, keys, first_column, fetcher, sums);
    fetcher.lines = 0;
    weigh_half<kRows, kBits, 1>(p, first_row, values, keys, first_column, fetcher, sums);
    for (int r = 0; r < kRows; ++r) {
      order<kBits>(sums[r]);
      float* row = o + r * o_stride + first_column;
      for (int64_t i = 0; i < 4 && first_column + 8 * i < dim; ++i) {
        const __m256 sum = _mm256_cvtepi32_ps(
            _mm256_sub_epi32(sums[r][i], _mm256_set1_epi32(p.offsets[first_row + r])));
        const __m256 added = _mm256_mul_ps(sum, _mm256_set1_ps(p.factors[first_row + r]));
        _mm256_storeu_ps(row + 8 * i, _mm256_fmadd_ps(_mm256_loadu_ps(row + 8 * i),
                                                      _mm256_set1_ps(row_scale[r]), added));
      }
    }
  }

 private:
  static constexpr int kChunk = 8;  // keys between prefetches

  template <int kRows, int kBits>
  [[gnu::noinline]] static void dot_pair(const WordRows& q, int64_t first_row,
                                         const PagedRows<Int8>& keys, int64_t dim, float* s) {
    // Bytes and elements of a load of codes; 8-bit codes widen to 32 bytes.
    constexpr int64_t kBytes = kBits == 8 ? 16 : 32, kStep = kBytes * 8 / kBits;
    __m256i acc[8];  // [row][key]
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) acc[i] = _mm256_setzero_si256();
    const int16_t* words = q.words + first_row * q.stride;
    for (int64_t d = 0; d < dim; d += kStep) {
      const int64_t byte = d * kBits / 8, left = (dim - d) * kBits / 8;
      __m256i a, b;
      if constexpr (kBits == 8) {
        a = _mm256_cvtepi8_epi16(load_16(keys[0] + byte, left));
        b = _mm256_cvtepi8_epi16(load_16(keys[1] + byte, left));
      } else {
        a = load_32(keys[0] + byte, left);
        b = load_32(keys[1] + byte, left);
      }
#pragma GCC unroll 8
      for (int part = 0; part < kParts<kBits>; ++part) {
        const __m256i x = codes<kBits>(a, part), y = codes<kBits>(b, part);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          __m256i row = _mm256_loadu_si256(
              reinterpret_cast<const __m256i*>(words + r * q.stride + d + 16 * part));
          asm("" : "+x"(row));  // loaded once, not by each product
          add_products(acc[2 * r], row, x);
          add_products(acc[2 * r + 1], row, y);
        }
      }
    }
    const __m256i sums =
        _mm256_sub_epi32(sums_of(acc), _mm256_castps_si256(load_twice(q.offsets + first_row)));
    const __m256 scores =
        _mm256_mul_ps(_mm256_cvtepi32_ps(sums), load_twice(q.factors + first_row));
    float all[8];
    _mm256_storeu_ps(all, scores);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) memcpy(s + r * kDirectKeys, all + 2 * r, 2 * sizeof(float));
  }

  // sums[kRows][2 * kHalf] and the next: of 16 of the 32 columns, in the order of their codes.
  template <int kRows, int kBits, int kHalf, class Next>
  [[gnu::always_inline]] static void weigh_half(const WordRows& p, int64_t first_row,
                                                const StridedRows<Int8>& values, Span keys,
                                                int64_t first_column, Fetcher<Next> fetcher,
                                                __m256i (&sums)[kRows][4]) {
    constexpr int64_t kHalfBytes = kBits == 8 ? 16 * kHalf : 0;
    __m256i acc[2 * kRows];
#pragma GCC unroll 8
    for (int i = 0; i < 2 * kRows; ++i) acc[i] = _mm256_setzero_si256();
    const int64_t byte = first_column * kBits / 8 + kHalfBytes;
    const int16_t* words = p.words + first_row * p.stride;
    for (int first = keys.begin / 2 * 2; first < keys.end; first += kChunk) {
      // Apart from the products: beside them g++ 12 ran out of registers and copied each sum.
      for (int i = 0; i < kChunk; i += 4) fetcher.fetch_keys();
      const int end = std::min(first + kChunk, keys.end);
      for (int key = first; key < end; key += 2) {
        __m256i x, y;
        load_pair<kBits, kHalf>(values[key] + byte, values[key + 1] + byte, x, y);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          int32_t weights;
          memcpy(&weights, words + r * p.stride + key, sizeof weights);
          const __m256i both = _mm256_set1_epi32(weights);
          add_products(acc[2 * r], x, both);
          add_products(acc[2 * r + 1], y, both);
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      sums[r][2 * kHalf] = acc[2 * r];
      sums[r][2 * kHalf + 1] = acc[2 * r + 1];
    }
  }

  // The codes of two keys for 16 columns, word by word side by side.
  template <int kBits, int kHalf>
  [[gnu::always_inline]] static void load_pair(const Int8* first, const Int8* second, __m256i& x,
                                               __m256i& y) {
    if constexpr (kBits == 8) {
      const __m128i a = load_16(first), b = load_16(second);
      x = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(a, b));
      y = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(a, b));
    } else {
      __m256i words;
      if constexpr (kBits == 4) {
        const __m128i a = load_16(first), b = load_16(second);
        words = _mm256_set_m128i(_mm_unpackhi_epi16(a, b), _mm_unpacklo_epi16(a, b));
      } else {
        const __m128i both = _mm_unpacklo_epi16(load_8(first), load_8(second));
        words = _mm256_set_m128i(_mm_srli_epi16(both, 8), both);
      }
      x = codes<kBits>(words, 2 * kHalf);
      y = codes<kBits>(words, 2 * kHalf + 1);
    }
  }

  // To 32 columns in order. Lane (L, w) of x[j], of 4-bit codes, is column 16 L + 4 w + j; of 2-bit
  // codes column 8 w + 4 L + j.
  template <int kBits>
  [[gnu::always_inline]] static void order(__m256i (&x)[4]) {
    if constexpr (kBits == 8) return;
    const __m256i a = _mm256_unpacklo_epi32(x[0], x[1]), b = _mm256_unpackhi_epi32(x[0], x[1]);
    const __m256i c = _mm256_unpacklo_epi32(x[2], x[3]), d = _mm256_unpackhi_epi32(x[2], x[3]);
    const __m256i w0 = _mm256_unpacklo_epi64(a, c), w1 = _mm256_unpackhi_epi64(a, c);
    const __m256i w2 = _mm256_unpacklo_epi64(b, d), w3 = _mm256_unpackhi_epi64(b, d);
    if constexpr (kBits == 4) {
      x[0] = _mm256_permute2x128_si256(w0, w1, 0x20);
      x[1] = _mm256_permute2x128_si256(w2, w3, 0x20);
      x[2] = _mm256_permute2x128_si256(w0, w1, 0x31);
      x[3] = _mm256_permute2x128_si256(w2, w3, 0x31);
    } else if constexpr (kBits == 2) {
      x[0] = w0;
      x[1] = w1;
      x[2] = w2;
      x[3] = w3;
    }
  }

  // In each lane: sum += the products of both words.
  [[gnu::always_inline]] static void add_products(__m256i& sum, __m256i a, __m256i b) {
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
  }
  // Code `part` of each word; of 8 bits the words themselves.
  template <int kBits>
  [[gnu::always_inline]] static __m256i codes(__m256i words, int part) {
    if constexpr (kBits == 8) return words;
    const __m256i shifted = _mm256_srli_epi16(words, kBits * part);
    return part + 1 == kParts<kBits>
               ? shifted
               : _mm256_and_si256(shifted, _mm256_set1_epi16((1 << kBits) - 1));
  }
  // Bytes of a row of which `left` are left, zeros behind them.
  [[gnu::always_inline]] static __m256i load_32(const Int8* from, int64_t left) {
    if (left >= 32) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    alignas(32) char bytes[32] = {};
    memcpy(bytes, from, static_cast<size_t>(std::max<int64_t>(left, 0)));
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(bytes));
  }
  [[gnu::always_inline]] static __m128i load_16(const Int8* from, int64_t left) {
    if (left >= 16) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    alignas(16) char bytes[16] = {};
    memcpy(bytes, from, static_cast<size_t>(std::max<int64_t>(left, 0)));
    return _mm_load_si128(reinterpret_cast<const __m128i*>(bytes));
  }
  [[gnu::always_inline]] static __m128i load_16(const Int8* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  [[gnu::always_inline]] static __m128i load_8(const Int8* from) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  }
  // Each of 4 elements twice.
  template <class T>
  [[gnu::always_inline]] static __m256 load_twice(const T* from) {
    return _mm256_permutevar8x32_ps(
        _mm256_castps128_ps256(_mm_loadu_ps(reinterpret_cast<const float*>(from))),
        _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
  }
  // Lane i: the sum of the lanes of acc[i].
  [[gnu::always_inline]] static __m256i sums_of(const __m256i (&acc)[8]) {
    __m256i pairs[4];  // sums of halves of acc[i] and acc[i + 4]
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      pairs[i] = _mm256_add_epi32(_mm256_permute2x128_si256(acc[i], acc[i + 4], 0x20),
                                  _mm256_permute2x128_si256(acc[i], acc[i + 4], 0x31));
    return _mm256_hadd_epi32(_mm256_hadd_epi32(pairs[0], pairs[1]),
                             _mm256_hadd_epi32(pairs[2], pairs[3]));
  }
};

}  // namespace headrace::cpu::flash
