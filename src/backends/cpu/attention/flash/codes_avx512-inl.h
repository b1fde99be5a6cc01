// Products of few rows with codes of 8, 4 and 2 bits as integers, by AVX-512 VNNI: a product of two
// words with two codes is one instruction where floats need two conversions and two FMAs. Included
// only below target_avx512.h, before flash-inl.h.
#pragma once

#include "backends/cpu/attention/flash/integer_products_256-inl.h"

namespace headrace::cpu::flash {

template <>
struct Words<cpu::avx512::Isa> {
  static __m512i round(__m512 x) { return _mm512_cvtps_epi32(x); }
  static void store(int16_t* to, __m512i x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(x));
  }
  static uint32_t sum(__m512i x) {
    return sum_of_words<cpu::avx512::Isa>(
        _mm256_add_epi32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1)));
  }
  // f16 in the low and in the high half of each word.
  static void unpack_halves(const uint32_t* words, __m512& low, __m512& high) {
    const __m512i x = _mm512_loadu_si512(words);
    low = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x));
    high = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(x, 16)));
  }
};

template <>
struct IntegerProducts<cpu::avx512::Isa> {
  static constexpr uint32_t kIsa = HEADRACE_ISA_AVX512_VNNI;
  static constexpr int kGroup = 128;
  template <int kBits>
  static constexpr int kColumns = kBits == 4 ? 128 : 64;
  template <int kBits>
  static constexpr bool kLoadsLines = true;
  using Vec = cpu::avx512::Vec;

  // s[kRows][kDirectKeys] = Q K^T of the keys of `span`, in fours.
  template <int kRows, int kBits, class Fetcher>
  [[gnu::noinline]] static void dot_keys(const WordRows& q, int64_t first_row,
                                         const PagedRows<Int8>& keys, Span span, int64_t dim,
                                         Fetcher fetcher, float* s) {
    constexpr int64_t kStep = kBits == 8 ? 32 : 128;  // elements
    const int16_t* words = q.words + first_row * q.stride;
    const __m512 factors = load_four_times(q.factors + first_row);
    const __m512i offsets = Vec::bits(load_four_times(q.offsets + first_row));
    for (int key = span.begin / 4 * 4; key < span.end; key += 4) {
      fetcher.fetch(keys, key);
      __m512i acc[16];  // [row][key]
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) acc[i] = _mm512_setzero_si512();
      const PagedRows<Int8> four = keys.from(key);
      int64_t d = 0;
      for (; d + kStep <= dim; d += kStep)
        add<kRows, kBits>(words, q.stride, four, d, int64_t{kStep}, acc);
      if (d < dim) add<kRows, kBits>(words, q.stride, four, d, dim - d, acc);
      const __m512i sums = kBits == 2 ? sums_of_halves(acc) : sums_of(acc);
      const __m512 scores =
          _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(sums, offsets)), factors);
      alignas(64) float all[16];
      _mm512_store_ps(all, scores);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r)
        memcpy(s + r * kDirectKeys + key, all + 4 * r, 4 * sizeof(float));
    }
  }

  // o[kRows] = o * row_scale + P V for 64 columns of 8-bit codes from `first_column`, or 128 of
  // 4-bit codes, over keys [begin, end) in pairs.
  template <int kRows, int kBits, class Rows, class Next>
  static void weigh(const WordRows& p, int64_t first_row, const Rows& values, Span keys,
                    int64_t first_column, int64_t dim, Fetcher<Next> fetcher, float* o,
                    int64_t o_stride, const float* row_scale) {
    weigh_columns<kRows, kBits, 1, 0>(p, first_row, values, keys, first_column, dim, fetcher, o,
                                      o_stride, row_scale);
    if constexpr (kBits == 4)
      weigh_columns<kRows, kBits, 1, 1>(p, first_row, values, keys, first_column, dim, fetcher, o,
                                        o_stride, row_scale);
  }
  // The same of 128 columns of 4-bit or 2-bit codes with weights for each 32 of them.
  template <int kRows, int kBits, class Rows, class Next>
  static void weigh_groups(const WordRows& p, int64_t first_row, const Rows& values, Span keys,
                           int64_t first_column, int64_t dim, Fetcher<Next> fetcher, float* o,
                           int64_t o_stride, const float* row_scale) {
    weigh_columns<kRows, kBits, 4, 0>(p, first_row, values, keys, first_column, dim, fetcher, o,
                                      o_stride, row_scale);
    weigh_columns<kRows, kBits, 4, 1>(p, first_row, values, keys, first_column, dim, fetcher, o,
                                      o_stride, row_scale);
  }

 private:
  template <int kRows, int kBits>
  [[gnu::always_inline]] static void add(const int16_t* words, int64_t stride,
                                         const PagedRows<Int8>& keys, int64_t d, int64_t left,
                                         __m512i (&acc)[16]) {
    if constexpr (kBits == 2)
      add_halves<kRows>(words, stride, keys, d, left, acc);
    else
      add_step<kRows, kBits>(words, stride, keys, d, left, acc);
  }
  // Of 2-bit codes, two keys in the halves of a vector: acc[row][pair of keys].
  template <int kRows>
  [[gnu::always_inline]] static void add_halves(const int16_t* words, int64_t stride,
                                                const PagedRows<Int8>& keys, int64_t d,
                                                int64_t left, __m512i (&acc)[16]) {
    __m512i code[2];
#pragma GCC unroll 2
    for (int k = 0; k < 2; ++k)
      code[k] = _mm512_inserti64x4(_mm512_castsi256_si512(load_half(keys[2 * k] + d / 4, left / 4)),
                                   load_half(keys[2 * k + 1] + d / 4, left / 4), 1);
#pragma GCC unroll 8
    for (unsigned part = 0; part < 8; ++part) {
      __m512i x[2];
#pragma GCC unroll 2
      for (int k = 0; k < 2; ++k)
        x[k] = _mm512_and_si512(_mm512_srli_epi16(code[k], 2 * part), _mm512_set1_epi16(3));
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const __m512i row = _mm512_broadcast_i64x4(_mm256_loadu_si256(
            reinterpret_cast<const __m256i*>(words + r * stride + d + 16 * part)));
        add_products(acc[2 * r], row, x[0]);
        add_products(acc[2 * r + 1], row, x[1]);
      }
    }
  }
  [[gnu::always_inline]] static __m256i load_half(const Int8* from, int64_t left) {
    if (left >= 32) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm256_maskz_loadu_epi8(~uint32_t{0} >> (32 - left), from);
  }
  // acc[row][key] += the products of the elements [d, d + left), a whole step or less.
  template <int kRows, int kBits>
  [[gnu::always_inline]] static void add_step(const int16_t* words, int64_t stride,
                                              const PagedRows<Int8>& keys, int64_t d, int64_t left,
                                              __m512i (&acc)[16]) {
    constexpr bool kIs4 = kBits == 4;
    __m512i code[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k)
      code[k] = kIs4 ? load_bytes(keys[k] + d / 2, left / 2) : load_words(keys[k] + d, left);
#pragma GCC unroll 4
    for (int part = 0; part < (kIs4 ? 4 : 1); ++part) {
      __m512i x[4];
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) x[k] = kIs4 ? nibbles(code[k], part) : code[k];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const __m512i row = _mm512_loadu_si512(words + r * stride + d + 32 * part);
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) add_products(acc[4 * r + k], row, x[k]);
      }
    }
  }

  // kGroups: of columns with weights of their own, those of a pair of keys side by side. kHalf: 1:
  // of 4-bit codes the columns 16 to 31 of each 32; rows and next keys are prefetched with the
  // first.
  template <int kRows, int kBits, int kGroups, int kHalf, class Rows, class Next>
  [[gnu::noinline]] static void weigh_columns(const WordRows& p, int64_t first_row,
                                              const Rows& values, Span keys, int64_t first_column,
                                              int64_t dim, Fetcher<Next> next, float* o,
                                              int64_t o_stride, const float* row_scale) {
    constexpr int64_t kStride = kDirectKeys * kGroups;  // of the rows of p
    __m512i acc[4 * kRows];
#pragma GCC unroll 16
    for (int i = 0; i < 4 * kRows; ++i) acc[i] = _mm512_setzero_si512();
    const int16_t* words = p.words + first_row * kStride;
    for (int key = keys.begin / 2 * 2; key < keys.end; key += 2) {
      if (kHalf == 0 && key % 4 == 0) next.fetch_keys();
      __m512i pair[4];
      load_pairs<kBits, kHalf>(values, key, first_column * kBits / 8, pair);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const __m512i both = load_weights<kBits, kGroups>(words + r * kStride + key * kGroups);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) add_products(acc[4 * r + i], pair[i], both);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      __m512i* sums = acc + 4 * r;
      if constexpr (kBits == 8)
        order_bytes(sums);
      else
        order_nibbles(sums);
      float* row = o + r * o_stride + first_column + (kBits == 4 ? 16 * kHalf : 0);
      const int64_t step = kBits == 8 ? 16 : 32;
#pragma GCC unroll 4
      for (int lane = 0; lane < 4; ++lane) {
        const int i = kBits == 2 ? kHalfGroups[lane] : lane;
        if (first_column + step * i >= dim) continue;
        const int64_t at = (first_row + r) * kGroups + (kGroups == 1 ? 0 : i);
        const __m512 sum =
            _mm512_cvtepi32_ps(_mm512_sub_epi32(sums[lane], _mm512_set1_epi32(p.offsets[at])));
        const __m512 added = _mm512_mul_ps(sum, Vec::set1(p.factors[at]));
        float* const to = row + step * i;
        if constexpr (kBits == 2) {
          // Fours of columns, of which the other half has every second.
          const __m512i order = _mm512_setr_epi32(0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7);
          const auto mask = static_cast<__mmask16>(kHalf == 1 ? 0xF0F0 : 0x0F0F);
#pragma GCC unroll 2
          for (int k = 0; k < 2; ++k) {
            const __m512 part =
                _mm512_permutexvar_ps(_mm512_add_epi32(order, _mm512_set1_epi32(8 * k)), added);
            _mm512_mask_storeu_ps(to + 16 * k, mask,
                                  Vec::fma(Vec::load(to + 16 * k), Vec::set1(row_scale[r]), part));
          }
        } else {
          Vec::store(to, Vec::fma(Vec::load(to), Vec::set1(row_scale[r]), added));
        }
      }
    }
  }

  // The codes of two keys as words side by side, of four times 16 columns.
  template <int kBits, int kHalf, class Rows>
  [[gnu::always_inline]] static void load_pairs(const Rows& values, int key, int64_t byte,
                                                __m512i (&pair)[4]) {
    if constexpr (kBits == 2) {
      const __m512i both = load_half_values(values, key, byte);
      const __m512i half = kHalf == 1 ? _mm512_srli_epi16(both, 8) : both;
#pragma GCC unroll 4
      for (unsigned i = 0; i < 4; ++i)
        pair[i] = _mm512_and_si512(_mm512_srli_epi16(half, 2 * i), _mm512_set1_epi16(3));
    } else if constexpr (kBits == 4) {
      const __m512i a = load_value<kHalf == 0>(values, key, byte);
      const __m512i b = load_value<kHalf == 0>(values, key + 1, byte);
      const __m512i both = kHalf == 1 ? _mm512_unpackhi_epi16(a, b) : _mm512_unpacklo_epi16(a, b);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) pair[i] = nibbles(both, i);
    } else {
      const __m512i a = load_value<kHalf == 0>(values, key, byte);
      const __m512i b = load_value<kHalf == 0>(values, key + 1, byte);
      const __m512i low = _mm512_unpacklo_epi8(a, b), high = _mm512_unpackhi_epi8(a, b);
      pair[0] = _mm512_cvtepi8_epi16(_mm512_castsi512_si256(low));
      pair[1] = _mm512_cvtepi8_epi16(_mm512_castsi512_si256(high));
      pair[2] = _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(low, 1));
      pair[3] = _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(high, 1));
    }
  }
  // In each lane: sum += the products of both words. As text: g++ 12 copies the sums around its
  // intrinsic, which is also not to be had without compiling all of this for VNNI.
  static void add_products(__m512i& sum, __m512i a, __m512i b) {
    asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  }
  // The weights of two keys in each lane, or in each lane of 128 bits those of its group.
  template <int kBits, int kGroups>
  [[gnu::always_inline]] static __m512i load_weights(const int16_t* from) {
    if constexpr (kBits == 2) {
      const __m512i lanes = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 3, 3, 3, 3);
      return _mm512_permutexvar_epi32(lanes, _mm512_loadu_si512(from));
    } else if constexpr (kGroups == 4) {
      const __m512i lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
      return _mm512_permutexvar_epi32(lanes, _mm512_loadu_si512(from));
    }
    int32_t weights;
    memcpy(&weights, from, sizeof weights);
    return _mm512_set1_epi32(weights);
  }
  // Of copied rows, or of rows where they are, of which later ones are prefetched.
  template <bool kFetch>
  [[gnu::always_inline]] static __m512i load_value(const StridedRows<Int8>& rows, int key,
                                                   int64_t byte) {
    return _mm512_loadu_si512(rows[key] + byte);
  }
  template <bool kFetch>
  [[gnu::always_inline]] static __m512i load_value(const PagedRows<Int8>& rows, int key,
                                                   int64_t byte) {
    if constexpr (kFetch) __builtin_prefetch(rows[key + kNearRows<Int8>] + byte, 0, 3);
    return _mm512_loadu_si512(rows[key] + byte);
  }
  // 32 bytes of two keys, word by word side by side; the lanes of 128 bits are kHalfGroups.
  template <class Rows>
  [[gnu::always_inline]] static __m512i load_half_values(const Rows& rows, int key, int64_t byte) {
    const __m256i a = load_half(rows[key] + byte, 32), b = load_half(rows[key + 1] + byte, 32);
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_unpacklo_epi16(a, b)),
                              _mm256_unpackhi_epi16(a, b), 1);
  }
  static constexpr int kHalfGroups[] = {0, 2, 1, 3};
  [[gnu::always_inline]] static __m512i load_bytes(const Int8* from, int64_t left) {
    if (left >= 64) return _mm512_loadu_si512(from);
    return _mm512_maskz_loadu_epi8(left <= 0 ? 0 : ~uint64_t{0} >> (64 - left), from);
  }
  [[gnu::always_inline]] static __m512i load_words(const Int8* from, int64_t left) {
    if (left >= 32)
      return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    return _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(~uint32_t{0} >> (32 - left), from));
  }
  // Each of 4 elements four times.
  template <class T>
  [[gnu::always_inline]] static __m512 load_four_times(const T* from) {
    return _mm512_permutexvar_ps(
        _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
        _mm512_castps128_ps512(_mm_loadu_ps(reinterpret_cast<const float*>(from))));
  }
  // Code i of the four in each word.
  [[gnu::always_inline]] static __m512i nibbles(__m512i words, int i) {
    const __m512i shifted = _mm512_srli_epi16(words, static_cast<unsigned>(4 * i));
    return i == 3 ? shifted : _mm512_and_si512(shifted, _mm512_set1_epi16(15));
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
  // The same of acc[row][pair of keys], a key in each half of a vector.
  [[gnu::always_inline]] static __m512i sums_of_halves(const __m512i* acc) {
    __m512i rows[4], both[2];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r)
      rows[r] = _mm512_add_epi32(_mm512_unpacklo_epi32(acc[2 * r], acc[2 * r + 1]),
                                 _mm512_unpackhi_epi32(acc[2 * r], acc[2 * r + 1]));
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i)
      both[i] = _mm512_add_epi32(_mm512_unpacklo_epi64(rows[2 * i], rows[2 * i + 1]),
                                 _mm512_unpackhi_epi64(rows[2 * i], rows[2 * i + 1]));
    // Lanes of 128 bits {rows 0 and 1 of even keys, of odd keys, rows 2 and 3}, pair after pair.
    const __m512i all = _mm512_add_epi32(_mm512_shuffle_i32x4(both[0], both[1], 0x88),
                                         _mm512_shuffle_i32x4(both[0], both[1], 0xDD));
    return _mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15), all);
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

// As above: a lane of 128 bits has the 32 channels of a group.
template <>
struct ZeroPointProducts<cpu::avx512::Isa> {
  using Products = IntegerProducts<cpu::avx512::Isa>;
  template <int kBits>
  static constexpr int kParts = 16 / kBits;
  template <int kBits>
  static constexpr int kGroup = 128;
  template <int kBits>
  static constexpr int kColumns = 128;
  template <int kBits>
  static constexpr bool kLoadsLines = kBits == 4;

  template <int kRows, int kBits, class... Args>
  static void dot_keys(const Args&... args) {
    Products::dot_keys<kRows, kBits>(args...);
  }
  template <int kRows, int kBits, class... Args>
  static void weigh(const Args&... args) {
    Products::weigh_groups<kRows, kBits>(args...);
  }
};

}  // namespace headrace::cpu::flash
