// Random numbers that are identical on every machine and standard library.
#pragma once

#include <cmath>
#include <cstdint>

namespace headrace::testing {

// splitmix64 (Steele, Lea, Flood 2014).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // [low, high]
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool chance(int percent) { return between(0, 99) < percent; }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  // The sum of four uniform numbers, scaled to variance 1: nearly normal, and reproducible.
  double normal() {
    const double sum = uniform() + uniform() + uniform() + uniform();
    return (sum - 2.0) * 1.7320508075688772;
  }
  template <class T, std::size_t n>
  T pick(const T (&from)[n]) {
    return from[static_cast<std::size_t>(between(0, static_cast<std::int64_t>(n) - 1))];
  }

 private:
  std::uint64_t state_;
};

}  // namespace headrace::testing
