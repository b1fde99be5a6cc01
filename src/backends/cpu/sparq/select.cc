#include "backends/cpu/sparq/select.h"

#include <bit>

namespace headrace::cpu {
namespace {

// Values that are not negative have the order of their bits.
std::uint32_t rank_of(float value) { return std::bit_cast<std::uint32_t>(value) & 0x7fffffffu; }

// A radix select: the digits of the count-th largest rank, from the highest to the lowest.
struct Digit {
  int shift, num_bits;
  std::uint32_t of(std::uint32_t rank) const { return rank >> shift & ((1u << num_bits) - 1); }
};
constexpr Digit kFirst{20, 11}, kOthers[] = {{10, 10}, {0, 10}};

// Neighbouring values often have the same digit; four histograms keep the increments apart.
struct Histogram {
  std::uint32_t counts[4][1 << 11] = {};

  void add(std::int64_t i, std::uint32_t digit) { ++counts[i % 4][digit]; }
  // The digit of the count-th largest; `count` becomes its place among those of the same digit.
  std::uint32_t find(const Digit& digit, std::int64_t& count) const {
    std::uint32_t found = (1u << digit.num_bits) - 1;
    for (;; --found) {
      const std::int64_t here =
          std::int64_t{counts[0][found]} + counts[1][found] + counts[2][found] + counts[3][found];
      if (here >= count || found == 0) return found;
      count -= here;
    }
  }
};

}  // namespace

void select_largest(const float* values, std::int64_t size, std::int64_t count,
                    std::int32_t* candidates, std::int32_t* indices) {
  if (count == 0) return;
  std::int64_t num_equal = count;  // those with the rank of the threshold that are selected
  Histogram first;
  for (std::int64_t i = 0; i < size; ++i) first.add(i, kFirst.of(rank_of(values[i])));
  std::uint32_t threshold = first.find(kFirst, num_equal) << kFirst.shift;
  // Few values have a digit that is not smaller; the other digits are of these alone.
  std::int64_t num_candidates = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    candidates[num_candidates] = static_cast<std::int32_t>(i);
    num_candidates += rank_of(values[i]) >= threshold;
  }
  for (const Digit& digit : kOthers) {
    Histogram histogram;
    const int prefix_shift = digit.shift + digit.num_bits;
    for (std::int64_t i = 0; i < num_candidates; ++i) {
      const std::uint32_t rank = rank_of(values[candidates[i]]);
      if (rank >> prefix_shift == threshold >> prefix_shift) histogram.add(i, digit.of(rank));
    }
    threshold |= histogram.find(digit, num_equal) << digit.shift;
  }
  std::int64_t num_found = 0;
  for (std::int64_t i = 0; num_found < count; ++i) {
    const std::uint32_t rank = rank_of(values[candidates[i]]);
    if (rank < threshold || (rank == threshold && num_equal-- <= 0)) continue;
    indices[num_found++] = candidates[i];
  }
}

}  // namespace headrace::cpu
