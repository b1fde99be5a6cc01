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
