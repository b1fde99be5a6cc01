// The matrix products for a few rows: K and V are read once, in order, from where they lie (decode
// is bound by that read).
#pragma once

#include "backends/cpu/flash/gemm-inl.h"

namespace headrace::cpu::flash {

// Rows of a head lie in different pages in [batch, seqlen, heads, dim], where hardware prefetchers
// do not follow. So rows are fetched by hand, into the L2 cache: K a few rows ahead, and with each
// row of K the V row of the same key, which the second product, walking V in strips of columns,
// then finds near.
inline constexpr int64_t kRowsAhead = 8;

template <class E>
inline void prefetch_row(const E* row, int64_t dim) {
  for (int64_t byte = 0; byte < dim * static_cast<int64_t>(sizeof(E)); byte += 64)
    __builtin_prefetch(reinterpret_cast<const char*>(row) + byte, 0, 2);
}

// s[kRows][kKeys] = Q K^T for rows of Q (units, zero padded to whole vectors) and rows of K.
template <class Isa, int kRows, int kKeys, class E>
inline void dot_rows(const typename Isa::Unit* q, int64_t q_stride, const E* keys,
                     int64_t key_stride, int64_t head_dim, float* s, int64_t s_stride) {
  using Vec = typename Isa::Vec;
  constexpr int kStep = Vec::kWidth * Isa::kPair;
  typename Vec::F acc[kRows][kKeys];
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int k = 0; k < kKeys; ++k) acc[i][k] = Vec::zero();
  }
  const int rest = static_cast<int>(head_dim % kStep);
  const auto step = [&](int64_t d, auto whole) __attribute__((always_inline)) {
    typename Vec::F row[kKeys];
#pragma GCC unroll 4
    for (int k = 0; k < kKeys; ++k) {
      const E* at = keys + k * key_stride + d;
      row[k] = decltype(whole)::value ? Isa::load_row(at) : Isa::load_row_partial(at, rest);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
      const auto qv = Isa::load_units(q + i * q_stride + d / Isa::kPair);
#pragma GCC unroll 4
      for (int k = 0; k < kKeys; ++k) acc[i][k] = Isa::madd(qv, row[k], acc[i][k]);
    }
  };
  int64_t d = 0;
  for (; d + kStep <= head_dim; d += kStep) step(d, std::true_type{});
  if (rest > 0) step(d, std::false_type{});
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int k = 0; k < kKeys; ++k) s[i * s_stride + k] = Vec::sum(acc[i][k]);
  }
}

// o[kRows][head_dim_v] = o * row_scale + P V over keys [begin, end) of the tile; begin is a
// multiple of kPair.
template <class Isa, int kRows, class E>
inline void weigh_values(const typename Isa::Unit* p, int64_t p_stride, const E* values,
                         int64_t value_stride, int64_t begin, int64_t end, int64_t head_dim_v,
                         float* o, int64_t o_stride, const float* row_scale) {
  using Vec = typename Isa::Vec;
  constexpr int kW = Vec::kWidth;
  for (int64_t c = 0; c < head_dim_v; c += kNr<Isa>) {
    typename Vec::F acc[kRows][Isa::kNv];
    int columns[Isa::kNv];
#pragma GCC unroll 4
    for (int v = 0; v < Isa::kNv; ++v) {
      const int64_t left = head_dim_v - c - v * kW;
      columns[v] = static_cast<int>(left < 0 ? 0 : left < kW ? left : kW);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) acc[i][v] = Vec::zero();
    }
    const auto step = [&](int64_t key, auto whole) __attribute__((always_inline)) {
      typename Vec::F row[Isa::kNv];
#pragma GCC unroll 4
      for (int v = 0; v < Isa::kNv; ++v) {
        const E* at = values + key * value_stride + c + v * kW;
        row[v] = decltype(whole)::value ? load_value_step<Isa>(at, value_stride, end - key, kW)
                 : columns[v] == 0      ? Vec::zero()
                                   : load_value_step<Isa>(at, value_stride, end - key, columns[v]);
      }
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
        const auto weight = Isa::broadcast(p + i * p_stride + key / Isa::kPair);
#pragma GCC unroll 4
        for (int v = 0; v < Isa::kNv; ++v) acc[i][v] = Isa::madd(weight, row[v], acc[i][v]);
      }
    };
    if (c + kNr<Isa> <= head_dim_v) {
      for (int64_t key = begin; key < end; key += Isa::kPair) step(key, std::true_type{});
    } else {
      for (int64_t key = begin; key < end; key += Isa::kPair) step(key, std::false_type{});
    }
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int v = 0; v < Isa::kNv; ++v) {
        float* out = o + i * o_stride + c + v * kW;
        Vec::store(out, Vec::fma(Vec::load(out), Vec::set1(row_scale[i]), acc[i][v]));
      }
    }
  }
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

// s[rows][num_keys] = Q K^T. `keys_ahead` >= num_keys: rows of K that exist behind `keys`.
template <class Isa, class E>
inline void direct_scores(const typename Isa::Unit* q, int64_t q_stride, int64_t rows,
                          const E* keys, int64_t key_stride, int64_t num_keys, int64_t keys_ahead,
                          int64_t head_dim, const E* values, int64_t value_stride,
                          int64_t head_dim_v, float* s, int64_t s_stride) {
  constexpr int kKeys = 3;  // 4 x 3 accumulators, 3 rows of K; Q is a memory operand
  const auto block = [&](int64_t key, auto num) __attribute__((always_inline)) {
    constexpr int kNum = decltype(num)::value;
    for (int64_t k = key; k < key + kNum; ++k) {
      if (k + kRowsAhead < keys_ahead) prefetch_row(keys + (k + kRowsAhead) * key_stride, head_dim);
      prefetch_row(values + k * value_stride, head_dim_v);
    }
    for_row_blocks(rows, [&](int64_t i, auto n) {
      dot_rows<Isa, decltype(n)::value, kNum>(q + i * q_stride, q_stride, keys + key * key_stride,
                                              key_stride, head_dim, s + i * s_stride + key,
                                              s_stride);
    });
  };
  int64_t key = 0;
  for (; key + kKeys <= num_keys; key += kKeys) block(key, std::integral_constant<int, kKeys>{});
  for (; key < num_keys; ++key) block(key, std::integral_constant<int, 1>{});
}

}  // namespace headrace::cpu::flash
