// Integer helpers used by plans and schedules.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace headrace {

template <class T>
constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

template <class T>
constexpr T round_up(T a, T multiple) {
  return ceil_div(a, multiple) * multiple;
}

// The product of non-negative sizes; INT64_MAX on overflow.
constexpr std::int64_t saturating_product(std::initializer_list<std::int64_t> sizes) {
  std::int64_t product = 1;
  bool is_too_large = false;
  for (const std::int64_t size : sizes) {
    if (size == 0) return 0;
    is_too_large = is_too_large || __builtin_mul_overflow(product, size, &product);
  }
  return is_too_large ? INT64_MAX : product;
}

}  // namespace headrace
