#include "weights/quantise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "weights/dequantise.h"
#include "weights/random_normal.h"

namespace headrace {
namespace {

constexpr int kElements = 4096;  // whole blocks of every format

std::vector<float> normals() {
  std::vector<float> values(kElements);
  random_normals(7, 0, 0, values);
  return values;
}

std::vector<float> round_trip(WeightType type, const std::vector<float>& values) {
  const WeightTypeInfo& info = info_of(type);
  std::vector<std::byte> blocks(values.size() / static_cast<std::size_t>(info.block_elements) *
                                static_cast<std::size_t>(info.block_bytes));
  std::vector<float> back(values.size());
  quantise(type, values.data(), static_cast<std::int64_t>(values.size()), blocks.data());
  dequantise(type, blocks.data(), static_cast<std::int64_t>(back.size()), back.data());
  return back;
}

// The largest error of a block, in the terms of its format: `magnitude` is the largest |x| of the
// block, `range` its largest minus its smallest value. Half a step; for symmetric 4- and 5-bit
// formats a whole step, at the end that has one level less. A step of the K formats is rounded to
// 1/63 (1/127) of the largest one, and the values past the last level are off by up to all of it.
double bound_of(WeightType type, double magnitude, double range) {
  switch (type) {
    case WeightType::f32:
      return 0;
    case WeightType::f16:
      return magnitude * 0x1p-11;
    case WeightType::bf16:
      return magnitude * 0x1p-8;
    case WeightType::q4_0:
      return magnitude / 8;
    case WeightType::q5_0:
      return magnitude / 16;
    case WeightType::q4_1:
      return range / 15 / 2;
    case WeightType::q5_1:
      return range / 31 / 2;
    case WeightType::q8_0:
      return magnitude / 127 / 2;
    case WeightType::q4_k:
      return range / 15 / 2 + range / 126 + magnitude / 126;
    case WeightType::q5_k:
      return range / 31 / 2 + range / 126 + magnitude / 126;
    case WeightType::q6_k:
      return magnitude / 31 / 2 + magnitude / 254;
  }
  return 0;
}

TEST(Quantise, ErrsByItsStepsAtMost) {
  const std::vector<float> values = normals();
  for (const WeightTypeInfo& info : weight_types()) {
    const std::vector<float> back = round_trip(info.type, values);
    double errors = 0;
    for (std::int64_t begin = 0; begin < kElements; begin += info.block_elements) {
      const auto* first = values.data() + begin;
      const auto [low, high] = std::minmax_element(first, first + info.block_elements);
      const double magnitude = std::max(std::fabs(*low), std::fabs(*high));
      // Scales and minima are f16: at most `magnitude` * 2^-11 each in the largest value.
      const double bound = bound_of(info.type, magnitude, double{*high} - *low) +
                           (info.block_elements > 1 ? 2 * magnitude * 0x1p-11 : 0);
      for (std::int64_t i = begin; i < begin + info.block_elements; ++i) {
        const auto at = static_cast<std::size_t>(i);
        ASSERT_LE(std::fabs(double{back[at]} - values[at]), bound) << info.name << " element " << i;
        errors += std::fabs(double{back[at]} - values[at]);
      }
    }
    EXPECT_EQ(errors == 0, info.type == WeightType::f32) << info.name;
  }
}

TEST(Quantise, KeepsZeros) {
  const std::vector<float> zeros(kElements);
  for (const WeightTypeInfo& info : weight_types())
    EXPECT_EQ(round_trip(info.type, zeros), zeros) << info.name;
}

TEST(Quantise, AChunkHasTheBytesOfTheWhole) {
  const std::vector<float> values = normals();
  for (const WeightTypeInfo& info : weight_types()) {
    const std::vector<float> whole = round_trip(info.type, values);
    const std::vector<float> half = round_trip(info.type, {values.begin() + 2048, values.end()});
    EXPECT_TRUE(std::equal(half.begin(), half.end(), whole.begin() + 2048)) << info.name;
  }
}

}  // namespace
}  // namespace headrace
