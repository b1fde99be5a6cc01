// Products of few rows with codes as integers: their interface, and the words that Q and P become.
// codes_avx2-inl.h and codes_avx512-inl.h have the products.
//
// A row of Q becomes 16-bit words times a power of two, a row of P words times 1 / 32767 of its
// largest: as precise as f16 and bf16 near the largest of a row. With zero points, scales of
// channels multiply Q first, which then is no longer of 8 or 11 bits: words times 1 / 32767 of its
// largest are twice as precise. Sums of words times codes are exact in 32 bits.
#pragma once

#include "backends/cpu/attention/flash/direct-inl.h"
#include "backends/cpu/attention/flash/softmax-inl.h"
#include "core/quantise.h"

namespace headrace::cpu::flash {

// Rows of Q or P: element = word * factor. A factor is NaN if the row has NaN or infinity.
struct WordRows {
  int16_t* words;
  int64_t stride;
  float* factors;
  int32_t* offsets;  // of a product with codes of 4 or 2 bits, which are stored without sign
};

// Prefetches the next keys while V is multiplied.
template <class Rows>
struct Fetcher {
  Fetch<Rows>& next;
  int lines;  // of a row of K; 0: none
  void fetch_keys() {
    for (int i = 0; i < lines; ++i) next.template lines<4>();
  }
};
// Prefetches V while K is multiplied, and the next rows of K into the L1 cache.
template <class Rows>
struct ValueFetcher {
  Fetch<Rows>& next;
  int value_lines, key_lines;  // of a row; 0: none
  // With the products of the keys [key, key + 4).
  void fetch(const Rows& keys, int key) {
    for (int i = 0; i < value_lines; ++i) next.template lines<4>();
    for (int k = 0; k < 4 && key_lines > 0; ++k) {
      const Int8* const row = keys[key + k + kNearRows<Int8>];
      for (int i = 0; i < key_lines; ++i) __builtin_prefetch(row + 64 * i, 0, 3);
    }
  }
};
// Rows of V in scratch memory, with zeros up to a multiple of these bytes.
inline constexpr int64_t kValueBytes = 64;

// None. A specialization has
//   kIsa                        bits of headrace_isa that the CPU needs
//   kGroup                      elements among which Q is ordered for 4-bit codes
//   kColumns<bits>              of a weigh()
//   dot_keys<rows, bits>(q, first_row, keys, span, dim, fetcher, s)
//                               s[rows][kDirectKeys] = Q K^T of the keys of `span`, in fours
//   weigh<rows, bits>(p, first_row, values, keys, first_column, dim, fetcher, o, o_stride,
//                     row_scale)
//                               o[rows] = o * row_scale + P V for kColumns<bits> columns, fewer
//                               at the end of a row, over keys [begin, end) in pairs
// for bits of 8 (i8) and 4 (i4x2). Rows of Q and P are counted from `first_row`, those of s, o and
// row_scale are not.
template <class Isa>
struct IntegerProducts {
  static constexpr uint32_t kIsa = 0;
};
template <class Isa, class E>
inline constexpr bool has_integer_products =
    IntegerProducts<Isa>::kIsa != 0 && !std::is_same_v<E, float>;

// The same for bits of 4 (u4x2) and 2 (u2x4). It also has kParts<bits>, the codes of a 16-bit
// word; its kGroup depends on the bits.
template <class Isa>
struct ZeroPointProducts {};

// Conversions of a vector of floats, and the sum of one of integers modulo 2^32 (those of a row
// with NaN mean nothing); in codes_*-inl.h.
template <class Isa>
struct Words;

struct WordScale {
  float inverse, factor;
};
// The largest power of two that keeps |x| below 2^15, but none above 2^115: what is smaller than
// 2^-115 of anything loses bits.
template <class Isa>
inline WordScale word_scale(float largest, float invalid) {
  if (!(largest + invalid < kInfinity)) return {0.0f, std::numeric_limits<float>::quiet_NaN()};
  int exponent = 0;
  std::frexp(largest, &exponent);  // largest < 2^exponent
  const int shift = 15 - std::max(exponent, -100);
  const float factor = std::ldexp(1.0f, -shift);
  // 2^15 - 1/2 and more would round to 2^15, which no word holds.
  const bool fits = largest * std::ldexp(1.0f, shift) < 32767.5f;
  return fits ? WordScale{std::ldexp(1.0f, shift), factor}
              : WordScale{std::ldexp(1.0f, shift - 1), 2.0f * factor};
}

// The largest becomes 2^15 - 1. What is below 2^-100 loses bits: a row that has no others is 0.
template <class Isa>
inline WordScale even_scale(float largest, float invalid) {
  const float most = std::max(largest, 0x1p-100f) + invalid;
  return {32767.0f / most, most * (1.0f / 32767.0f)};
}

// to[4][4], rows `to_stride` apart, of the columns of from[4][4].
template <class T>
[[gnu::always_inline]] inline void transpose_fours(const T* from, int64_t from_stride, T* to,
                                                   int64_t to_stride) {
  // As vectors: g++ 12 moves element by element otherwise.
  using Four = int32_t __attribute__((vector_size(16)));
  static_assert(sizeof(T) == sizeof(int32_t));
  Four x[4], pairs[4];
  for (int i = 0; i < 4; ++i) memcpy(&x[i], from + i * from_stride, sizeof x[i]);
  for (int i = 0; i < 2; ++i) {
    pairs[2 * i] = __builtin_shuffle(x[i], x[i + 2], Four{0, 4, 1, 5});
    pairs[2 * i + 1] = __builtin_shuffle(x[i], x[i + 2], Four{2, 6, 3, 7});
  }
  for (int i = 0; i < 2; ++i) {
    x[2 * i] = __builtin_shuffle(pairs[i], pairs[i + 2], Four{0, 4, 1, 5});
    x[2 * i + 1] = __builtin_shuffle(pairs[i], pairs[i + 2], Four{2, 6, 3, 7});
  }
  for (int i = 0; i < 4; ++i) memcpy(to + i * to_stride, &x[i], sizeof x[i]);
}

// The order in which shifts of a 16-bit word give its kParts codes: to[stride], of each kGroup
// elements first 0, kParts, 2 * kParts and so on, then 1, kParts + 1. Zeros behind `dim`.
template <class Isa, int kParts, int kGroup, class T>
[[gnu::noinline]] inline void order_parts(const T* from, int64_t dim, T* to, int64_t stride) {
  constexpr int64_t kRow = kGroup / kParts;  // elements of a part
  int64_t first = 0;
  if constexpr (kParts % 4 == 0) {
    for (; first + kGroup <= dim; first += kGroup)
      for (int64_t i = 0; i < kRow; i += 4)
        for (int64_t part = 0; part < kParts; part += 4)
          transpose_fours(from + first + i * kParts + part, kParts, to + first + part * kRow + i,
                          kRow);
  }
  for (; first < stride; first += kGroup)
    for (int64_t i = 0; i < kRow; ++i)
      for (int64_t part = 0; part < kParts; ++part) {
        const int64_t at = first + i * kParts + part;
        to[first + part * kRow + i] = at < dim ? from[at] : T{};
      }
}

// Words of row[stride] times scales[stride], unless that is null; returns their sum. The caller
// sets the offset. kIsEven: by even_scale(). kStride: rows.stride, or 0 if it is not known.
template <class Isa, bool kIsEven, int64_t kStride = 0>
[[gnu::noinline]] inline uint32_t load_words(const float* row, const float* scales,
                                             const WordRows& rows, int64_t r) {
  using Vec = typename Isa::Vec;
  using F = typename Vec::F;
  constexpr int64_t kW = Vec::kWidth;
  const int64_t stride = kStride > 0 ? kStride : rows.stride;
  const auto load = [&](int64_t i) {
    return scales == nullptr ? Vec::load(row + i)
                             : Vec::mul(Vec::load(row + i), Vec::load(scales + i));
  };
  F largest = Vec::zero(), invalid = Vec::zero();  // `invalid`: NaN for NaN and infinity
  for (int64_t i = 0; i < stride; i += kW) {
    const F x = load(i);
    largest = Vec::max(largest, Vec::abs(x));
    invalid = Vec::fma(x, Vec::zero(), invalid);
  }
  const float most = Vec::max_lane(largest), any_invalid = Vec::sum(invalid);
  const WordScale scale =
      kIsEven ? even_scale<Isa>(most, any_invalid) : word_scale<Isa>(most, any_invalid);
  int16_t* words = rows.words + r * stride;
  auto sum = Vec::set1_int(0);
  for (int64_t i = 0; i < stride; i += kW) {
    const auto n = Words<Isa>::round(Vec::mul(load(i), Vec::set1(scale.inverse)));
    sum = Vec::add_int(sum, n);
    Words<Isa>::store(words + i, n);
  }
  rows.factors[r] = scale.factor;
  return Words<Isa>::sum(sum);
}

// Words of the probabilities `span` of a tile of kDirectKeys, times `scales` unless it is null, and
// zeros around them; returns their sum. The caller sets the offset.
template <class Isa>
[[gnu::noinline]] inline uint32_t load_weight_words(const float* p, const float* scales, Span span,
                                                    const WordRows& rows, int64_t r) {
  float inside[kDirectKeys], inside_scales[kDirectKeys];
  if (span.begin > 0 || span.end < kDirectKeys) {
    const auto cut = [span](const float* from, float* to) {
      fill(to, 0, kDirectKeys, 0.0f);
      for (int i = span.begin; i < span.end; ++i) to[i] = from[i];
      return to;
    };
    p = cut(p, inside);
    if (scales != nullptr) scales = cut(scales, inside_scales);
  }
  return load_words<Isa, true, kDirectKeys>(p, scales, rows, r);
}

// The middle of stored codes without sign. Products are relative to it, which halves the error of
// words.
template <int kBits>
inline constexpr int kMiddle = kBits == 8 ? 0 : 1 << (kBits - 1);
// Of products with words of this sum.
template <int kBits>
inline int32_t code_offset(uint32_t sum) {
  return static_cast<int32_t>(kMiddle<kBits> * sum);
}

// Q of a direct task from `row` on, in word_floats() of scratch memory.
inline WordRows word_rows(float* first, int64_t head_dim, int64_t row) {
  const int64_t stride = word_stride(head_dim);
  return {reinterpret_cast<int16_t*>(first + 2 * kSweepRows) + row * stride, stride, first + row,
          reinterpret_cast<int32_t*>(first + kSweepRows) + row};
}

}  // namespace headrace::cpu::flash
