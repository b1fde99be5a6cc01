// Division by a value that the host knows.
#pragma once

#include <cstdint>

namespace headrace::cuda {

// Of non-negative ints, without the device's 25 instructions: n / d = n * m >> 31 + s with
// m = 2^(31 + s) / d + 1 and 2^s >= d, exact for n < 2^31 (Granlund and Montgomery, 1994).
struct Divisor {
  std::uint32_t multiplier;  // m: below 2^32
  std::int32_t shift;

  // 1 <= d < 2^31.
  static constexpr Divisor of(std::int64_t d) {
    int s = 0;
    while (std::int64_t{1} << s < d) ++s;
    return {static_cast<std::uint32_t>((1ull << (31 + s)) / static_cast<std::uint64_t>(d) + 1),
            31 + s};
  }
  constexpr int divide(int n) const {
    return static_cast<int>(static_cast<std::uint64_t>(n) * multiplier >> shift);
  }
};

}  // namespace headrace::cuda
