// Multiplication in the flash kernel if a unit (one 32-bit step of a reduction) is a float.
#pragma once

#include <type_traits>

#include "backends/cpu/simd/element.h"

namespace headrace::cpu {

template <class V>
struct FloatUnits {
  using Vec = V;
  using F = typename V::F;
  using Unit = float;
  static constexpr int kPair = 1;  // elements per unit

  static F broadcast(const Unit* p) { return V::set1(*p); }
  static F load_units(const Unit* p) { return V::load(p); }
  static F madd(F a, F b, F c) { return V::fma(a, b, c); }

  // Loads a vector of units from a row; the partial form reads n elements and pads with zeros.
  template <class E>
  static F load_row(const E* row) {
    return V::load(row);
  }
  template <class E>
  static F load_row_partial(const E* row, int n) {
    return V::load_partial(row, n);
  }

  // Vectors of a row from one load, in the order that is cheapest to convert: even bf16 elements
  // need a shift, odd ones a mask; in memory order each vector would need a shuffle and a shift.
  template <class E>
  static constexpr int kBlock = std::is_same_v<E, Bf16> ? 2 : 1;
  template <class E>
  static void load_block(const E* row, F (&x)[kBlock<E>]) {
    if constexpr (kBlock<E> == 2) {
      V::load_even_odd(row, x[0], x[1]);
    } else {
      x[0] = V::load(row);
    }
  }

  // row [elements] -> units [num_units], padded with zeros.
  template <class E>
  static void copy_row(const E* row, int64_t elements, Unit* units, int64_t num_units) {
    int64_t i = 0;
    for (; i + V::kWidth <= elements; i += V::kWidth) V::store(units + i, V::load(row + i));
    if (i < elements) {
      V::store(units + i, V::load_partial(row + i, static_cast<int>(elements - i)));
      i += V::kWidth;
    }
    for (; i < num_units; ++i) units[i] = 0.0f;
  }

  // kPair rows as one step of a reduction over rows. Here a step is one row, and the caller skips
  // rows that do not count.
  template <class E>
  static void copy_step(const E* rows, int64_t, int64_t, int64_t, int64_t elements, Unit* units,
                        int64_t num_units) {
    copy_row(rows, elements, units, num_units);
  }
};

}  // namespace headrace::cpu
