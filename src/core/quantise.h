// Quantised heads of keys and values: codes with one scale. What the append kernels of all devices
// compute.
//
// The scale is the largest magnitude / 127 (i8), / 448 (f8e4m3), or the element of the largest
// magnitude / -8 (i4x2, as GGUF's Q4_0: the full range of codes is used). A head with a NaN or an
// infinity has scale NaN. One whose largest magnitude is below kSmallestQuantised is stored as
// zeros, because the inverse of its scale could overflow.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "core/dtype.h"

namespace headrace {

inline constexpr float kSmallestQuantised = 0x1p-100f;

// `extreme`: the element of the largest magnitude, the first of several; NaN if any is NaN.
constexpr float quantised_scale(DType format, float extreme) {
  const float magnitude = extreme < 0 ? -extreme : extreme;
  if (!(magnitude <= std::numeric_limits<float>::max()))
    return std::numeric_limits<float>::quiet_NaN();
  if (magnitude < kSmallestQuantised) return 0;
  if (format == DType::i8) return magnitude / 127;
  if (format == DType::f8e4m3) return magnitude / 448;
  return extreme / -8;
}

// Of a scale; 0 for scales that multiply nothing.
constexpr float inverse_scale(float scale) {
  return scale == 0 || scale != scale ? 0.0f : 1.0f / scale;
}

// x / scale to the nearest integer, ties to even, for |x| < 2^22: the sum's last bit is worth 1.
constexpr float round_to_integer(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

constexpr std::int8_t quantise_i8(float x, float inverse) {
  const float code = round_to_integer(x * inverse);
  return static_cast<std::int8_t>(code > 127 ? 127 : code < -127 ? -127 : code == code ? code : 0);
}
constexpr std::uint8_t quantise_e4m3(float x, float inverse) {
  const float code = x * inverse;
  return e4m3_from_float(code == code ? code : 0);
}
// 0 to 15, the code of an i4x2.
constexpr std::uint8_t quantise_i4(float x, float inverse) {
  const float code = round_to_integer(x * inverse);
  return static_cast<std::uint8_t>((code > 7 ? 7 : code < -8 ? -8 : code == code ? code : 0) + 8);
}

}  // namespace headrace
