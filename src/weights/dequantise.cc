#include "weights/dequantise.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/dtype.h"

namespace headrace {
namespace {

template <class T>
T read(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

float half(const std::byte* at) { return float_from_f16(read<std::uint16_t>(at)); }
int byte(const std::byte* at) { return std::to_integer<int>(*at); }

// Blocks of 32 elements: elements 0 to 15 are the low nibbles of bytes 0 to 15, elements 16 to 31
// the high nibbles. In five-bit formats bit j of a 32-bit word is the fifth bit of element j.
int nibble(const std::byte* nibbles, int j) {
  return j < 16 ? byte(nibbles + j) & 15 : byte(nibbles + j - 16) >> 4;
}

void q4_0(const std::byte* block, float* out) {
  const float scale = half(block);
  for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(nibble(block + 2, j) - 8) * scale;
}

void q4_1(const std::byte* block, float* out) {
  const float scale = half(block), minimum = half(block + 2);
  for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(nibble(block + 4, j)) * scale + minimum;
}

int five_bits(const std::byte* high, const std::byte* nibbles, int j) {
  return nibble(nibbles, j) | static_cast<int>(read<std::uint32_t>(high) >> j & 1) << 4;
}

void q5_0(const std::byte* block, float* out) {
  const float scale = half(block);
  for (int j = 0; j < 32; ++j)
    out[j] = static_cast<float>(five_bits(block + 2, block + 6, j) - 16) * scale;
}

void q5_1(const std::byte* block, float* out) {
  const float scale = half(block), minimum = half(block + 2);
  for (int j = 0; j < 32; ++j)
    out[j] = static_cast<float>(five_bits(block + 4, block + 8, j)) * scale + minimum;
}

void q8_0(const std::byte* block, float* out) {
  const float scale = half(block);
  for (int j = 0; j < 32; ++j)
    out[j] = static_cast<float>(read<std::int8_t>(block + 2 + j)) * scale;
}

// Blocks of 256 elements: 8 groups of 32, each with a 6-bit scale and a 6-bit minimum, packed into
// 12 bytes. Groups 0 to 3: the low six bits of bytes 0 to 3 (scale) and 4 to 7 (minimum). Groups 4
// to 7: the nibbles of bytes 8 to 11 and the top two bits of the first eight bytes.
struct Group {
  int scale, minimum;
};
Group group_of(const std::byte* packed, int g) {
  if (g < 4) return {byte(packed + g) & 63, byte(packed + g + 4) & 63};
  return {(byte(packed + g + 4) & 15) | (byte(packed + g - 4) >> 6) << 4,
          (byte(packed + g + 4) >> 4) | (byte(packed + g) >> 6) << 4};
}

// Groups 2i and 2i + 1 are the low and high nibbles of the same 32 bytes. In `high` (Q5_K) bit g of
// byte j is the fifth bit of element j of group g.
void k_quant(const std::byte* block, const std::byte* high, const std::byte* nibbles, float* out) {
  const float scale = half(block), minimum = half(block + 2);
  for (int g = 0; g < 8; ++g) {
    const Group group = group_of(block + 4, g);
    const float d = scale * static_cast<float>(group.scale);
    const float m = minimum * static_cast<float>(group.minimum);
    for (int j = 0; j < 32; ++j) {
      int q = byte(nibbles + g / 2 * 32 + j) >> (g % 2 * 4) & 15;
      if (high != nullptr) q |= (byte(high + j) >> g & 1) << 4;
      out[g * 32 + j] = d * static_cast<float>(q) - m;
    }
  }
}

void q4_k(const std::byte* block, float* out) { k_quant(block, nullptr, block + 16, out); }
void q5_k(const std::byte* block, float* out) { k_quant(block, block + 16, block + 48, out); }

// Two halves of 128 elements: 64 bytes of low nibbles, 32 bytes of high bit pairs, 8 scales.
void q6_k(const std::byte* block, float* out) {
  const float scale = half(block + 208);
  for (int part = 0; part < 2; ++part) {
    const std::byte* low = block + part * 64;
    const std::byte* high = block + 128 + part * 32;
    const std::byte* scales = block + 192 + part * 8;
    for (int j = 0; j < 128; ++j) {
      const int quarter = j / 32;
      const int four = byte(low + j % 64) >> (j / 64 * 4) & 15;
      const int two = byte(high + j % 32) >> (quarter * 2) & 3;
      const float d = scale * static_cast<float>(read<std::int8_t>(scales + j / 16));
      out[part * 128 + j] = d * static_cast<float>((four | two << 4) - 32);
    }
  }
}

}  // namespace

void dequantise(WeightType type, const std::byte* data, std::int64_t elements, float* out) {
  const WeightTypeInfo& info = info_of(type);
  for (std::int64_t i = 0; i < elements; i += info.block_elements, data += info.block_bytes) {
    switch (type) {
      case WeightType::f32:
        out[i] = read<float>(data);
        break;
      case WeightType::f16:
        out[i] = half(data);
        break;
      case WeightType::bf16:
        out[i] = float_from_bf16(read<std::uint16_t>(data));
        break;
      case WeightType::q4_0:
        q4_0(data, out + i);
        break;
      case WeightType::q4_1:
        q4_1(data, out + i);
        break;
      case WeightType::q5_0:
        q5_0(data, out + i);
        break;
      case WeightType::q5_1:
        q5_1(data, out + i);
        break;
      case WeightType::q8_0:
        q8_0(data, out + i);
        break;
      case WeightType::q4_k:
        q4_k(data, out + i);
        break;
      case WeightType::q5_k:
        q5_k(data, out + i);
        break;
      case WeightType::q6_k:
        q6_k(data, out + i);
        break;
    }
  }
}

void bf16_rows(WeightType format, std::int64_t rows, std::int64_t columns, const std::byte* blocks,
               std::uint16_t* out) {
  const std::int64_t row_bytes = info_of(format).bytes_of(columns);
  std::vector<float> row(static_cast<std::size_t>(columns));
  for (std::int64_t r = 0; r < rows; ++r) {
    dequantise(format, blocks + r * row_bytes, columns, row.data());
    std::transform(row.begin(), row.end(), out + r * columns, bf16_from_float);
  }
}

}  // namespace headrace
