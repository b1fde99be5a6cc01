// Integer helpers used by plans and schedules.
#pragma once

#include <cstdint>

namespace headrace {

template <class T>
constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

template <class T>
constexpr T round_up(T a, T multiple) {
  return ceil_div(a, multiple) * multiple;
}

}  // namespace headrace
