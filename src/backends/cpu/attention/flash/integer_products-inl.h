// The interface of integer products of few rows with codes; codes_avx512-inl.h implements it.
#pragma once

#include "backends/cpu/attention/flash/direct-inl.h"
#include "backends/cpu/attention/flash/softmax-inl.h"

namespace headrace::cpu::flash {

// Rows of Q or P: element = word * factor. A factor is NaN if the row has NaN or infinity.
struct WordRows {
  int16_t* words;
  int64_t stride;
  float* factors;
  int32_t* offsets;  // of a product with 4-bit codes, which are 8 more than what they stand for
};
struct WordScale {
  float inverse, factor;
};

// Of V and O.
struct Columns {
  int64_t first, dim;
  bool is_upper_half;  // 4-bit codes: columns 16 to 31 of each 32
};

// Prefetches while V is read: the next keys, and rows of V into the L1 cache.
template <class Rows>
struct Fetcher {
  Fetch<Rows>& next;
  int lines;  // of a row of K; 0: none
  bool is_near;
  void fetch_keys() {
    for (int i = 0; i < lines; ++i) next.template lines<4>();
  }
  template <class E>
  void fetch_near(const E* row) const {
    if (is_near) __builtin_prefetch(row, 0, 3);
  }
};

// None.
template <class Isa>
struct IntegerProducts {
  static constexpr bool kExists = false;
};
template <class Isa, class E>
inline constexpr bool has_integer_products =
    IntegerProducts<Isa>::kExists && !std::is_same_v<E, float>;

// Q of a direct task, at the end of a worker's scratch memory.
inline WordRows word_rows(float* scratch_end, int64_t head_dim) {
  float* first = scratch_end - word_floats(head_dim);
  return {reinterpret_cast<int16_t*>(first + 2 * kDirectRows), word_stride(head_dim), first,
          reinterpret_cast<int32_t*>(first + kDirectRows)};
}
template <class Isa, class E>
inline void load_query_words(DType k_dtype, const typename Isa::Unit* row, int64_t dim,
                             WordRows words, int64_t r) {
  if constexpr (has_integer_products<Isa, E>) {
    if (k_dtype == DType::i8) IntegerProducts<Isa>::template load_row<false>(row, dim, words, r);
    if (k_dtype == DType::i4x2) IntegerProducts<Isa>::template load_row<true>(row, dim, words, r);
  }
}

}  // namespace headrace::cpu::flash
