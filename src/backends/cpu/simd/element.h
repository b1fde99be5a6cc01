// Element types of tensors in memory. Vector registers hold floats; loads and stores convert.
#pragma once

#include <stdint.h>

#include "core/dtype.h"

namespace headrace::cpu {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

// Codes of a quantised KV cache; loads give the code as a float, without a scale, of E4m3 times
// kE4m3Unit: its bits as f16, which take no multiplication.
inline constexpr float kE4m3Unit = 0x1p-8f;
struct Int8 {
  int8_t code;
};
struct E4m3 {
  uint8_t bits;
};

inline float to_float(float x) { return x; }
inline float to_float(Bf16 x) { return float_from_bf16(x.bits); }
inline float to_float(F16 x) { return float_from_f16(x.bits); }

inline float to_float(Int8 x) { return static_cast<float>(x.code); }
inline float to_float(E4m3 x) { return float_from_e4m3(x.bits) * kE4m3Unit; }

inline void from_float(float x, float& out) { out = x; }
inline void from_float(float x, Bf16& out) { out.bits = bf16_from_float(x); }
inline void from_float(float x, F16& out) { out.bits = f16_from_float(x); }

}  // namespace headrace::cpu
