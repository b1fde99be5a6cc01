// Scalar conversions of the 16-bit formats, and loads of any floating dtype as double. Rounding is
// to nearest even; NaN stays NaN (quiet); infinities and denormals are preserved.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "headrace/tensor.hpp"

namespace headrace {

inline float float_from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline std::uint16_t bf16_from_float(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

constexpr float float_from_f16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = bits >> 10 & 0x1fu;
  const std::uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {  // zero or denormal: mantissa * 2^-24, exact in float
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  if (exponent == 31) {
    const std::uint32_t quiet = mantissa != 0 ? 0x400000u : 0u;
    return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13 | quiet);
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

constexpr std::uint16_t f16_from_float(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u)
    return static_cast<std::uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
  if (magnitude >= 0x477ff000u)
    return static_cast<std::uint16_t>(sign | 0x7c00u);  // rounds to 2^16 or more
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 leaves round-to-even of multiples of
                                  // 2^-24 in the low bits
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
  }
  const std::uint32_t rounded = magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<std::uint16_t>(sign | rounded >> 13);
}

// Codes 0x7f and 0xff are NaN; there is no infinity.
constexpr float float_from_e4m3(std::uint8_t bits) {
  const std::uint32_t magnitude = bits & 0x7fu;
  if (magnitude == 0x7fu) return std::bit_cast<float>(0x7fc00000u);
  const std::uint32_t exponent = magnitude >> 3, mantissa = magnitude & 7u;
  const float value = exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9f
                                    : std::bit_cast<float>((exponent + 120) << 23 | mantissa << 20);
  return (bits & 0x80u) != 0 ? -value : value;
}

// Values beyond 448 become 448, as there is no infinity; NaN stays NaN.
constexpr std::uint8_t e4m3_from_float(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint8_t>(sign | 0x7fu);
  if (magnitude >= 0x43e00000u) return static_cast<std::uint8_t>(sign | 0x7eu);  // 448
  if (magnitude < 0x3c800000u) {  // below 2^-6: multiples of 2^-9, in the low bits of 2^14 + x
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x46800000u));
  }
  const std::uint32_t rounded = magnitude - 0x3c000000u + 0x7ffffu + (magnitude >> 20 & 1u);
  const std::uint32_t code = rounded >> 20;
  return static_cast<std::uint8_t>(sign | (code > 0x7eu ? 0x7eu : code));
}

// Code `idx` of codes of `bits` bits without a sign.
constexpr int unsigned_code(int bits, const std::uint8_t* bytes, std::int64_t idx) {
  const std::int64_t per_byte = 8 / bits;
  return bytes[idx / per_byte] >> idx % per_byte * bits & ((1 << bits) - 1);
}

// Element `idx` of a floating tensor, or code of a quantised one.
inline double load_as_double(DType dtype, const void* data, std::int64_t idx) {
  switch (dtype) {
    case DType::f32:
      return static_cast<const float*>(data)[idx];
    case DType::f16:
      return float_from_f16(static_cast<const std::uint16_t*>(data)[idx]);
    case DType::bf16:
      return float_from_bf16(static_cast<const std::uint16_t*>(data)[idx]);
    case DType::f64:
      return static_cast<const double*>(data)[idx];
    case DType::i8:
      return static_cast<const std::int8_t*>(data)[idx];
    case DType::f8e4m3:
      return float_from_e4m3(static_cast<const std::uint8_t*>(data)[idx]);
    case DType::i4x2: {
      const std::uint32_t pair = static_cast<const std::uint8_t*>(data)[idx / 2];
      return static_cast<double>(idx % 2 == 0 ? pair & 15u : pair >> 4) - 8;
    }
    case DType::u4x2:
      return unsigned_code(4, static_cast<const std::uint8_t*>(data), idx);
    case DType::u2x4:
      return unsigned_code(2, static_cast<const std::uint8_t*>(data), idx);
    default:
      return 0;
  }
}

// Rounding to odd avoids the double rounding of double -> float -> 16 bits.
inline float round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || nearest != nearest) return nearest;
  std::uint32_t bits = std::bit_cast<std::uint32_t>(nearest);
  if ((bits & 0x7fffffffu) == 0x7f800000u) return nearest;
  const bool away_from_zero = value < 0 ? nearest < value : nearest > value;
  if (away_from_zero) --bits;  // truncated towards zero, then made odd
  return std::bit_cast<float>(bits | 1u);
}

inline void store_from_double(DType dtype, void* data, std::int64_t idx, double value) {
  switch (dtype) {
    case DType::f32:
      static_cast<float*>(data)[idx] = static_cast<float>(value);
      break;
    case DType::f16:
      static_cast<std::uint16_t*>(data)[idx] = f16_from_float(round_to_odd(value));
      break;
    case DType::bf16:
      static_cast<std::uint16_t*>(data)[idx] = bf16_from_float(round_to_odd(value));
      break;
    case DType::f64:
      static_cast<double*>(data)[idx] = value;
      break;
    default:
      break;
  }
}

}  // namespace headrace
