#include "core/quantise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/support/random.h"

namespace headrace {
namespace {

float dequantised(DType format, float x, float scale) {
  const float inverse = inverse_scale(scale);
  if (format == DType::i8) return static_cast<float>(quantise_i8(x, inverse)) * scale;
  if (format == DType::f8e4m3) return float_from_e4m3(quantise_e4m3(x, inverse)) * scale;
  return static_cast<float>(quantise_i4(x, inverse) - 8) * scale;
}

// Half a step: of the scale, or of an fp8's last digit.
TEST(Quantise, ErrorIsHalfAStep) {
  testing::Random random(3);
  for (const float size : {0x1p-99f, 1e-20f, 0.01f, 1.0f, 3e4f, 1e30f}) {
    for (int round = 0; round < 100; ++round) {
      std::vector<float> head(64);
      for (float& x : head) x = size * static_cast<float>(random.normal());
      const float extreme =
          *std::ranges::max_element(head, {}, [](float x) { return std::abs(x); });
      for (const DType format : {DType::i8, DType::f8e4m3, DType::i4x2}) {
        const float scale = quantised_scale(format, extreme);
        for (const float x : head) {
          const float error = std::abs(dequantised(format, x, scale) - x);
          const float step = format == DType::f8e4m3
                                 ? std::max(std::abs(x) / 8, std::abs(scale) * 0x1p-9f)
                                 : std::abs(scale);
          // The positive end of int4 has one code less.
          const bool is_clipped = format == DType::i4x2 && x / scale > 7;
          EXPECT_LE(error, (is_clipped ? 1.0f : 0.5f) * step * 1.001f)
              << dtype_name(format) << ' ' << x << ' ' << scale;
        }
        EXPECT_NEAR(dequantised(format, extreme, scale) / extreme, 1, 1e-6) << dtype_name(format);
      }
    }
  }
}

TEST(Quantise, HeadsWithoutAScale) {
  for (const DType format : {DType::i8, DType::f8e4m3, DType::i4x2}) {
    EXPECT_EQ(quantised_scale(format, 0.0f), 0.0f);
    EXPECT_EQ(quantised_scale(format, -0x1p-101f), 0.0f);
    EXPECT_NE(quantised_scale(format, -0x1p-100f), 0.0f);
    EXPECT_EQ(dequantised(format, 0x1p-110f, 0.0f), 0.0f);
    for (const float bad : {HUGE_VALF, -HUGE_VALF, std::nanf("")})
      EXPECT_TRUE(std::isnan(quantised_scale(format, bad)));
    EXPECT_TRUE(std::isnan(dequantised(format, 1.0f, std::nanf(""))));
  }
}

// Half a step, and what the zero point and 15 steps of an f16 are rounded by.
TEST(Quantise, ErrorWithAZeroPointIsHalfAStep) {
  testing::Random random(4);
  for (const DType format : {DType::u4x2, DType::u2x4})
    for (const float size : {1e-3f, 1.0f, 3e3f})
      for (const float shift : {0.0f, 20.0f, -3e4f}) {
        std::vector<float> group(32);
        Extent extent;
        for (float& x : group) {
          x = shift + size * static_cast<float>(random.normal());
          extent.add(x);
        }
        const ScaleAndZero by = unpack_scale(scale_word(format, extent));
        for (const float x : group) {
          const auto code = static_cast<float>(
              quantise_unsigned(x, by.zero, inverse_scale(by.scale), largest_code(format)));
          const float rounding = 0x1p-11f * (std::abs(by.zero) + 16 * by.scale) + 16 * 0x1p-25f;
          EXPECT_LE(std::abs(by.zero + code * by.scale - x), 0.5f * by.scale + rounding)
              << dtype_name(format) << ' ' << x << ' ' << by.scale << ' ' << by.zero;
        }
      }
}

TEST(Quantise, GroupsWithoutARangeAndWithoutANumber) {
  for (const DType format : {DType::u4x2, DType::u2x4}) {
    Extent equal;
    for (int i = 0; i < 32; ++i) equal.add(-2.5f);
    const ScaleAndZero by = unpack_scale(scale_word(format, equal));
    EXPECT_EQ(by.scale, 0);
    EXPECT_EQ(by.zero, -2.5f);
    EXPECT_EQ(quantise_unsigned(-2.5f, by.zero, inverse_scale(by.scale), 3), 0);
    for (const float bad : {HUGE_VALF, -HUGE_VALF, std::nanf(""), 7e4f, -7e4f}) {
      Extent extent;
      for (const float x : {1.0f, bad, 2.0f}) extent.add(x);
      const ScaleAndZero none = unpack_scale(scale_word(format, extent));
      // The range of 7e4 fits, if it is divided by the codes.
      EXPECT_EQ(std::isnan(none.zero), bad != 7e4f) << bad;
      EXPECT_EQ(std::isnan(none.scale), bad != 7e4f) << bad;
      if (bad == 7e4f) {
        EXPECT_NEAR(none.scale * largest_code(format), 7e4f, 40);
      }
      EXPECT_EQ(quantise_unsigned(1.0f, none.zero, std::isnan(none.scale) ? 0 : 1, 3), 0);
    }
  }
}

TEST(Quantise, CodesStayInTheirRange) {
  for (const float x : {-1e9f, -200.0f, -128.0f, 128.0f, 1e6f, HUGE_VALF, -HUGE_VALF}) {
    EXPECT_EQ(std::abs(quantise_i8(x, 1.0f)), 127);
    EXPECT_EQ(quantise_i4(x, 1.0f), x < 0 ? 0 : 15);
  }
  EXPECT_EQ(quantise_i8(0.5f, 1.0f), 0);
  EXPECT_EQ(quantise_i8(1.5f, 1.0f), 2);
  EXPECT_EQ(quantise_i8(-2.5f, 1.0f), -2);
}

}  // namespace
}  // namespace headrace
