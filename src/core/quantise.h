// Quantised heads of keys and values: codes with one scale. What the append kernels of all devices
// compute.
//
// The scale is the largest magnitude / 127 (i8), / 448 (f8e4m3), or the element of the largest
// magnitude / -8 (i4x2, as GGUF's Q4_0: the full range of codes is used). A head with a NaN or an
// infinity has scale NaN. One whose largest magnitude is below kSmallestQuantised is stored as
// zeros, because the inverse of its scale could overflow.
//
// Codes with zero points (has_zero_points()) spread over the range of a group of elements: a code
// is (x - zero) / scale, with the least element as zero. Both are f16, of which elements beyond
// 65504 make NaN.
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

struct ScaleAndZero {
  float scale, zero;
};
// Both as f16, the scale in the low half.
constexpr ScaleAndZero unpack_scale(std::uint32_t word) {
  return {float_from_f16(static_cast<std::uint16_t>(word)),
          float_from_f16(static_cast<std::uint16_t>(word >> 16))};
}
// The range of a group of elements.
struct Extent {
  float least = std::numeric_limits<float>::infinity(),
        most = -std::numeric_limits<float>::infinity();
  float invalid = 0;  // NaN if an element is NaN or infinite

  constexpr void add(float x) {
    least = x < least ? x : least;
    most = x > most ? x : most;
    invalid += x * 0;
  }
};
constexpr float largest_code(DType format) { return format == DType::u2x4 ? 3 : 15; }
constexpr std::uint32_t scale_word(DType format, const Extent& x) {
  const std::uint32_t scale = f16_from_float((x.most - x.least) / largest_code(format)),
                      zero = f16_from_float(x.least + x.invalid);
  constexpr std::uint32_t kExponent = 0x7c00u, kNaN = 0x7e007e00u;
  if ((scale & kExponent) == kExponent || (zero & kExponent) == kExponent) return kNaN;
  return scale | zero << 16;
}
constexpr std::uint8_t quantise_unsigned(float x, float zero, float inverse, float largest) {
  const float code = round_to_integer((x - zero) * inverse);
  return static_cast<std::uint8_t>(code > largest ? largest : code > 0 ? code : 0);
}

}  // namespace headrace
