#include "weights/quantise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/dtype.h"

namespace headrace {
namespace {

template <class T>
void write(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

// Stores a scale as f16; what a reader will see.
float write_half(std::byte* at, float value) {
  const std::uint16_t bits = f16_from_float(value);
  write(at, bits);
  return float_from_f16(bits);
}

float inverse(float value) { return value != 0 ? 1 / value : 0; }
int rounded(float value) { return static_cast<int>(std::floor(value + 0.5f)); }

float largest_magnitude(const float* values, int count) {  // with its sign
  return *std::max_element(values, values + count,
                           [](float a, float b) { return std::fabs(a) < std::fabs(b); });
}

// Values of up to five bits in the layout that dequantise.cc describes. `high`: null, or the word
// of the fifth bits.
void pack(const int* values, std::byte* high, std::byte* nibbles) {
  std::uint32_t fifth = 0;
  for (int j = 0; j < 16; ++j) {
    nibbles[j] = static_cast<std::byte>((values[j] & 15) | (values[j + 16] & 15) << 4);
    fifth |= static_cast<std::uint32_t>(values[j] >> 4) << j;
    fifth |= static_cast<std::uint32_t>(values[j + 16] >> 4) << (j + 16);
  }
  if (high != nullptr) write(high, fifth);
}

// Q4_0 and Q5_0: the value of largest magnitude is the most negative level exactly.
void symmetric(const float* values, int half_levels, std::byte* scale, std::byte* high,
               std::byte* nibbles) {
  const float step = largest_magnitude(values, 32) / static_cast<float>(-half_levels);
  const float factor = inverse(write_half(scale, step));
  int levels[32];
  for (int j = 0; j < 32; ++j)
    levels[j] = std::clamp(rounded(values[j] * factor) + half_levels, 0, 2 * half_levels - 1);
  pack(levels, high, nibbles);
}

// Q4_1 and Q5_1: from the minimum up.
void affine(const float* values, int top, std::byte* block, std::byte* high, std::byte* nibbles) {
  const auto [low, most] = std::minmax_element(values, values + 32);
  const float factor = inverse(write_half(block, (*most - *low) / static_cast<float>(top)));
  const float minimum = write_half(block + 2, *low);
  int levels[32];
  for (int j = 0; j < 32; ++j)
    levels[j] = std::clamp(rounded((values[j] - minimum) * factor), 0, top);
  pack(levels, high, nibbles);
}

void q8_0(const float* values, std::byte* block) {
  const float step = std::fabs(largest_magnitude(values, 32)) / 127;
  const float factor = inverse(write_half(block, step));
  for (int j = 0; j < 32; ++j)
    write(block + 2 + j,
          static_cast<std::int8_t>(std::clamp(rounded(values[j] * factor), -127, 127)));
}

// The 6-bit scale and minimum of group g: the inverse of group_of() in dequantise.cc. `packed`
// starts as zeros.
void put_group(std::byte* packed, int g, int scale, int minimum) {
  const auto or_into = [&](int at, int bits) { packed[at] |= static_cast<std::byte>(bits); };
  if (g < 4) {
    or_into(g, scale);
    or_into(g + 4, minimum);
  } else {
    or_into(g + 4, (scale & 15) | (minimum & 15) << 4);
    or_into(g - 4, scale >> 4 << 6);
    or_into(g, minimum >> 4 << 6);
  }
}

// Q4_K and Q5_K: a value is scale * group scale * level - minimum * group minimum.
void k_quant(const float* values, int top, std::byte* block, std::byte* high, std::byte* nibbles) {
  float steps[8], minima[8];
  for (int g = 0; g < 8; ++g) {
    const auto [low, most] = std::minmax_element(values + 32 * g, values + 32 * g + 32);
    minima[g] = std::max(-*low, 0.0f);
    steps[g] = std::max(*most + minima[g], 0.0f) / static_cast<float>(top);
  }
  std::fill(block, nibbles + 128, std::byte{});
  const float scale = write_half(block, *std::max_element(steps, steps + 8) / 63);
  const float minimum = write_half(block + 2, *std::max_element(minima, minima + 8) / 63);
  for (int g = 0; g < 8; ++g) {
    const int group_scale = std::clamp(rounded(steps[g] * inverse(scale)), 0, 63);
    const int group_minimum = std::clamp(rounded(minima[g] * inverse(minimum)), 0, 63);
    put_group(block + 4, g, group_scale, group_minimum);
    const float factor = inverse(scale * static_cast<float>(group_scale));
    const float offset = minimum * static_cast<float>(group_minimum);
    for (int j = 0; j < 32; ++j) {
      const int level = std::clamp(rounded((values[32 * g + j] + offset) * factor), 0, top);
      nibbles[g / 2 * 32 + j] |= static_cast<std::byte>((level & 15) << (g % 2 * 4));
      if (high != nullptr) high[j] |= static_cast<std::byte>(level >> 4 << g);
    }
  }
}

// Q6_K: 16 groups of 16, each with an 8-bit scale.
void q6_k(const float* values, std::byte* block) {
  std::fill(block, block + 210, std::byte{});
  const float step = std::fabs(largest_magnitude(values, 256)) / 31;
  const float scale = write_half(block + 208, step / 127);
  for (int g = 0; g < 16; ++g) {
    const float group_step = std::fabs(largest_magnitude(values + 16 * g, 16)) / 31;
    const int group_scale = std::clamp(rounded(group_step * inverse(scale)), 0, 127);
    write(block + 192 + g, static_cast<std::int8_t>(group_scale));
    const float factor = inverse(scale * static_cast<float>(group_scale));
    for (int i = 16 * g; i < 16 * g + 16; ++i) {
      const int level = std::clamp(rounded(values[i] * factor), -32, 31) + 32;
      const int part = i / 128, j = i % 128;
      block[part * 64 + j % 64] |= static_cast<std::byte>((level & 15) << (j / 64 * 4));
      block[128 + part * 32 + j % 32] |= static_cast<std::byte>(level >> 4 << (j / 32 * 2));
    }
  }
}

void quantise_block(WeightType type, const float* values, std::byte* block) {
  switch (type) {
    case WeightType::f32:
      return write(block, *values);
    case WeightType::f16:
      return write(block, f16_from_float(*values));
    case WeightType::bf16:
      return write(block, bf16_from_float(*values));
    case WeightType::q4_0:
      return symmetric(values, 8, block, nullptr, block + 2);
    case WeightType::q4_1:
      return affine(values, 15, block, nullptr, block + 4);
    case WeightType::q5_0:
      return symmetric(values, 16, block, block + 2, block + 6);
    case WeightType::q5_1:
      return affine(values, 31, block, block + 4, block + 8);
    case WeightType::q8_0:
      return q8_0(values, block);
    case WeightType::q4_k:
      return k_quant(values, 15, block, nullptr, block + 16);
    case WeightType::q5_k:
      return k_quant(values, 31, block, block + 16, block + 48);
    case WeightType::q6_k:
      return q6_k(values, block);
  }
}

}  // namespace

void quantise(WeightType type, const float* values, std::int64_t elements, std::byte* out) {
  const WeightTypeInfo& info = info_of(type);
  for (std::int64_t i = 0; i < elements; i += info.block_elements, out += info.block_bytes)
    quantise_block(type, values + i, out);
}

}  // namespace headrace
