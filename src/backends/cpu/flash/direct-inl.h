// The matrix products for a few rows: K and V are read once, in order, from where they lie (decode
// is bound by that read).
#pragma once

#include "backends/cpu/flash/config.h"
#include "backends/cpu/flash/gemm-inl.h"

namespace headrace::cpu::flash {

// Rows of K or of V in memory.
template <class E>
struct Rows {
  const E* first;
  int64_t stride;  // elements
  int64_t count;
  int64_t dim;  // elements of a row

  const E* operator[](int64_t row) const { return first + row * stride; }
};

// Both products fetch rows while they compute: the first the rows of V that the second will need,
// that one the next rows of K. By hand, because in [batch, seqlen, heads, dim] the rows of a head
// lie in different pages, where hardware prefetchers do not follow; evenly, a line for some
// products: a burst would fill the core's buffers of outstanding misses and stop it; and in the
// order of memory, through the rows of all heads that a task has, which prefetchers do follow.
template <class E>
class Fetch {
 public:
  // Rows of `width` elements, `stride` apart.
  Fetch(const E* first, int64_t width, int64_t stride)
      : at_(first), end_(first + width), width_(width), skip_(stride - width) {}

  void line() {
    __builtin_prefetch(at_, 0, 2);  // into the L2 cache
    at_ += kLine;
    if (at_ < end_) return;
    at_ = end_ + skip_;
    end_ = at_ + width_;
  }

 private:
  static constexpr int64_t kLine = 64 / sizeof(E);
  const E *at_, *end_;
  int64_t width_, skip_;
};

// s[kRows][kKeys] = Q K^T for rows of Q (units, zero padded to whole vectors) and the rows `key`
// and `key` + `apart` of K. With kFetch, as many lines of `next` are fetched.
template <class Isa, int kRows, int kKeys, bool kFetch, class E>
inline void dot_rows(const typename Isa::Unit* q, int64_t q_stride, const Rows<E>& keys,
                     Fetch<E>& next, int64_t key, int64_t apart, float* s) {
  using Vec = typename Isa::Vec;
  constexpr int64_t kStep = Vec::kWidth * Isa::kPair, kLine = 64 / sizeof(E);
  typename Vec::F acc[kRows * kKeys];  // [row][key]
  const typename Isa::Unit* q_row[kRows];
  const E* row[kKeys];
#pragma GCC unroll 4
  for (int k = 0; k < kKeys; ++k) row[k] = keys[key + k * apart];
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
    q_row[i] = q + i * q_stride;
#pragma GCC unroll 4
    for (int k = 0; k < kKeys; ++k) acc[i * kKeys + k] = Vec::zero();
  }
  const auto multiply = [&](int64_t d, auto load) __attribute__((always_inline)) {
    typename Vec::F x[kKeys];
#pragma GCC unroll 4
    for (int k = 0; k < kKeys; ++k) x[k] = load(row[k] + d);
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
      const auto qv = Isa::load_units(q_row[i] + d / Isa::kPair);
#pragma GCC unroll 4
      for (int k = 0; k < kKeys; ++k) {
        auto& sum = acc[i * kKeys + k];
        sum = Isa::madd(qv, x[k], sum);
      }
    }
  };
  const auto load = [](const E* at) __attribute__((always_inline)) { return Isa::load_row(at); };
  int64_t d = 0;
  for (; d + kLine <= keys.dim; d += kLine) {
    if constexpr (kFetch) {
#pragma GCC unroll 4
      for (int k = 0; k < kKeys; ++k) next.line();
    }
#pragma GCC unroll 16
    for (int64_t i = 0; i < kLine; i += kStep) multiply(d + i, load);
  }
  for (; d + kStep <= keys.dim; d += kStep) multiply(d, load);
  if (d < keys.dim) {
    const int rest = static_cast<int>(keys.dim - d);
    multiply(d, [rest](const E* at) { return Isa::load_row_partial(at, rest); });
  }
  if constexpr (kRows * kKeys % 8 == 0) {
    for (int first = 0; first < kRows * kKeys; first += 8) {
      float sums[8];
      Vec::sums(acc + first, sums);
      for (int i = 0; i < 8; ++i)
        s[(first + i) / kKeys * kDirectKeys + key + (first + i) % kKeys * apart] = sums[i];
    }
  } else {
    for (int i = 0; i < kRows * kKeys; ++i)
      s[i / kKeys * kDirectKeys + key + i % kKeys * apart] = Vec::sum(acc[i]);
  }
}

// Columns [c, c + kVectors vectors) of o[kRows][head_dim_v] = o * row_scale + P V over values
// [begin, count). With kFetch, as many lines of `next` are fetched.
template <class Isa, int kRows, int kVectors, bool kFetch, class E>
inline void weigh_columns(const float* p, const Rows<E>& values, Fetch<E>& next, int64_t begin,
                          int64_t c, float* o, int64_t o_stride, const float* row_scale) {
  using Vec = typename Isa::Vec;
  constexpr int64_t kW = Vec::kWidth, kLine = 64 / sizeof(E);
  typename Vec::F acc[kRows][kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) acc[i][v] = Vec::zero();
  }
  const auto add = [&](auto load) __attribute__((always_inline)) {
    for (int64_t key = begin; key < values.count; ++key) {
      typename Vec::F row[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) row[v] = load(values[key] + c, v * kW);
      if constexpr (kFetch) {
#pragma GCC unroll 4
        for (int64_t line = 0; line < kVectors * kW; line += kLine) next.line();
      }
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        const auto weight = Vec::set1(p[i * kDirectKeys + key]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) acc[i][v] = Vec::fma(weight, row[v], acc[i][v]);
      }
    }
  };
  const int64_t left = values.dim - c;
  if (left >= kVectors * kW) {
    add([](const E* row, int column) { return Vec::load(row + column); });
  } else {
    add([left](const E* row, int column) {
      return load_columns<Vec>(row + column, left - column);
    });
  }
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* out = o + i * o_stride + c + v * kW;
      Vec::store(out, Vec::fma(Vec::load(out), Vec::set1(row_scale[i]), acc[i][v]));
    }
  }
}

// All columns: as many at once as there are registers for, the last ones in blocks of kNv vectors.
template <class Isa, int kRows, bool kFetch, class E>
inline void weigh_values(const float* p, const Rows<E>& values, Fetch<E>& next, int64_t begin,
                         float* o, int64_t o_stride, const float* row_scale) {
  constexpr int kMost = Isa::kValueVectors;
  int64_t c = 0;
  for (; c + kMost * Isa::Vec::kWidth <= values.dim; c += kMost * Isa::Vec::kWidth)
    weigh_columns<Isa, kRows, kMost, kFetch>(p, values, next, begin, c, o, o_stride, row_scale);
  for (; c < values.dim; c += kNr<Isa>)
    weigh_columns<Isa, kRows, Isa::kNv, kFetch>(p, values, next, begin, c, o, o_stride, row_scale);
}

// Calls body(first_row, std::integral_constant<int, n>) for blocks of 4, 2 and 1 rows.
template <class Body>
inline void for_row_blocks(int64_t rows, Body body) {
  int64_t i = 0;
  for (; i + 4 <= rows; i += 4) body(i, std::integral_constant<int, 4>{});
  if (i + 2 <= rows) {
    body(i, std::integral_constant<int, 2>{});
    i += 2;
  }
  if (i < rows) body(i, std::integral_constant<int, 1>{});
}

// s[rows][keys.count] = Q K^T, while as many lines of `next` are fetched. K is read in kKeyStreams
// streams, each through a part of its own: a core has more lines under way for more than one.
template <class Isa, class E>
inline void direct_scores(const typename Isa::Unit* q, int64_t q_stride, int64_t rows,
                          const Rows<E>& keys, Fetch<E>& next, float* s) {
  const auto dot = [&](int64_t key, int64_t apart, auto num) __attribute__((always_inline)) {
    constexpr int kKeys = decltype(num)::value;
    for_row_blocks(
        rows, [&](int64_t i, auto n) __attribute__((always_inline)) {
          constexpr int kRows = decltype(n)::value;
          const auto* q_block = q + i * q_stride;
          float* s_block = s + i * kDirectKeys;
          if (i == 0) {
            dot_rows<Isa, kRows, kKeys, true>(q_block, q_stride, keys, next, key, apart, s_block);
          } else {
            dot_rows<Isa, kRows, kKeys, false>(q_block, q_stride, keys, next, key, apart, s_block);
          }
        });
  };
  constexpr int kStreams = Isa::kKeyStreams;
  const int64_t apart = keys.count / kStreams;
  for (int64_t key = 0; key < apart; ++key)
    dot(key, apart, std::integral_constant<int, kStreams>{});
  for (int64_t key = apart * kStreams; key < keys.count; ++key)
    dot(key, 0, std::integral_constant<int, 1>{});
}

// o[rows][head_dim_v] = o * row_scale + P V over values [begin, count), while as many lines of
// `next` are fetched.
template <class Isa, class E>
inline void direct_output(const float* p, int64_t rows, const Rows<E>& values, Fetch<E>& next,
                          int64_t begin, float* o, int64_t o_stride, const float* row_scale) {
  for_row_blocks(
      rows, [&](int64_t i, auto n) __attribute__((always_inline)) {
        constexpr int kRows = decltype(n)::value;
        const auto* p_block = p + i * kDirectKeys;
        float* o_block = o + i * o_stride;
        if (i == 0) {
          weigh_values<Isa, kRows, true>(p_block, values, next, begin, o_block, o_stride,
                                         row_scale);
        } else {
          weigh_values<Isa, kRows, false>(p_block, values, next, begin, o_block, o_stride,
                                          row_scale + i);
        }
      });
}

}  // namespace headrace::cpu::flash
