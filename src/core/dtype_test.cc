#include "core/dtype.h"

#include <gtest/gtest.h>

#include <cmath>

namespace headrace {
namespace {

TEST(DType, EveryF16SurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = float_from_f16(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(float_from_f16(f16_from_float(value))));
    } else {
      EXPECT_EQ(f16_from_float(value), half);
    }
  }
}

TEST(DType, F16RoundsToNearestEven) {
  for (std::uint32_t bits = 0; bits < 0x7c00;
       ++bits) {  // midpoints between neighbours, and the nearest values on both sides
    const float low = float_from_f16(static_cast<std::uint16_t>(bits));
    const float high =
        bits == 0x7bff ? 65536.0f : float_from_f16(static_cast<std::uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;
    EXPECT_EQ(f16_from_float(middle), bits + (bits & 1));
    EXPECT_EQ(f16_from_float(std::nextafter(middle, 0.0f)), bits);
    EXPECT_EQ(f16_from_float(std::nextafter(middle, 1e9f)), bits + 1);
    EXPECT_EQ(f16_from_float(-middle), 0x8000u + bits + (bits & 1));
  }
}

TEST(DType, Bf16RoundsToNearestEven) {
  EXPECT_EQ(bf16_from_float(1.0f), 0x3f80);
  EXPECT_EQ(bf16_from_float(1.0f + 0x1p-8f), 0x3f80);
  EXPECT_EQ(bf16_from_float(1.0f + 0x3p-8f), 0x3f82);
  EXPECT_EQ(bf16_from_float(3.4e38f), 0x7f80);
  EXPECT_TRUE(std::isnan(float_from_bf16(bf16_from_float(std::nanf("")))));
}

TEST(DType, EveryE4m3SurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 256; ++bits) {
    const auto code = static_cast<std::uint8_t>(bits);
    const float value = float_from_e4m3(code);
    EXPECT_EQ(std::isnan(value), (code & 0x7f) == 0x7f);
    EXPECT_EQ(e4m3_from_float(value) & 0x7f, code & 0x7f) << value;
    EXPECT_EQ(std::signbit(value), !std::isnan(value) && code >= 0x80);
  }
  EXPECT_EQ(float_from_e4m3(0x7e), 448.0f);
  EXPECT_EQ(float_from_e4m3(0x01), 0x1p-9f);
  EXPECT_EQ(float_from_e4m3(0x38), 1.0f);
  EXPECT_TRUE(std::isnan(float_from_e4m3(e4m3_from_float(std::nanf("")))));
}

TEST(DType, E4m3RoundsToNearestEvenAndSaturates) {
  for (std::uint32_t bits = 0; bits < 0x7e; ++bits) {
    const float low = float_from_e4m3(static_cast<std::uint8_t>(bits));
    const float high = float_from_e4m3(static_cast<std::uint8_t>(bits + 1));
    const float middle = low + (high - low) / 2;
    EXPECT_EQ(e4m3_from_float(middle), bits + (bits & 1));
    EXPECT_EQ(e4m3_from_float(std::nextafter(middle, 0.0f)), bits);
    EXPECT_EQ(e4m3_from_float(std::nextafter(middle, 1e9f)), bits + 1);
    EXPECT_EQ(e4m3_from_float(-middle), 0x80u + bits + (bits & 1));
  }
  for (const float large : {449.0f, 464.0f, 1e30f, HUGE_VALF}) {
    EXPECT_EQ(e4m3_from_float(large), 0x7e);
    EXPECT_EQ(e4m3_from_float(-large), 0xfe);
  }
}

TEST(DType, DoubleIsRoundedOnce) {
  // Above a bf16 midpoint by less than a float ulp: double rounding would round down to even.
  std::uint16_t out = 0;
  store_from_double(DType::bf16, &out, 0, 1.0 + 0x1p-8 + 0x1p-40);
  EXPECT_EQ(out, 0x3f81);
  store_from_double(DType::bf16, &out, 0, -(1.0 + 0x1p-8 - 0x1p-40));
  EXPECT_EQ(out, 0xbf80);
}

}  // namespace
}  // namespace headrace
