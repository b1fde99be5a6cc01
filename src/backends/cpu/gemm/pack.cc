#include "backends/cpu/gemm/pack.h"

#include <algorithm>
#include <cstring>

#include "backends/cpu/gemm/layout.h"
#include "base/math.h"
#include "core/dtype.h"
#include "weights/dequantise.h"

namespace headrace::cpu::gemm {
namespace {

using std::int64_t;
using std::uint16_t;
using std::uint8_t;

template <class T>
T read(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <class T>
void write(T value, uint8_t* at) {
  std::memcpy(at, &value, sizeof value);
}

float half(const uint8_t* at) { return float_from_f16(read<uint16_t>(at)); }

// ---- a group of one row in the model file's layout (weights/dequantise.cc) ----

struct Group {
  uint8_t elements[kGroup];
  uint8_t scales[2];  // bytes: scale and minimum, or two scales
};

void add_nibbles(const uint8_t* nibbles, Group& group) {
  for (int j = 0; j < 16; ++j) {
    group.elements[j] = nibbles[j] & 15;
    group.elements[j + 16] = nibbles[j] >> 4;
  }
}

void add_fifth_bits(const uint8_t* bits, Group& group) {
  const auto word = read<std::uint32_t>(bits);
  for (int j = 0; j < kGroup; ++j)
    group.elements[j] = static_cast<uint8_t>(group.elements[j] | (word >> j & 1) << 4);
}

void read_k_quant(const uint8_t* block, bool has_fifth_bits, int g, Group& group) {
  const uint8_t* scales = block + 4;
  const uint8_t* high = block + 16;
  const uint8_t* nibbles = block + (has_fifth_bits ? 48 : 16) + g / 2 * 32;
  for (int j = 0; j < kGroup; ++j) {
    int q = nibbles[j] >> (g % 2 * 4) & 15;
    if (has_fifth_bits) q |= (high[j] >> g & 1) << 4;
    group.elements[j] = static_cast<uint8_t>(q);
  }
  const int i = g % 4;
  if (g < 4) {
    group.scales[0] = scales[i] & 63;
    group.scales[1] = scales[i + 4] & 63;
  } else {
    group.scales[0] = static_cast<uint8_t>((scales[i + 8] & 15) | scales[i] >> 6 << 4);
    group.scales[1] = static_cast<uint8_t>(scales[i + 8] >> 4 | scales[i + 4] >> 6 << 4);
  }
}

void read_q6_k(const uint8_t* block, int g, Group& group) {
  const int part = g / 4, quarter = g % 4;
  const uint8_t* low = block + part * 64 + quarter % 2 * 32;
  const uint8_t* high = block + 128 + part * 32;
  for (int j = 0; j < kGroup; ++j)
    group.elements[j] =
        static_cast<uint8_t>((low[j] >> quarter / 2 * 4 & 15) | (high[j] >> quarter * 2 & 3) << 4);
  std::memcpy(group.scales, block + 192 + 2 * g, 2);
}

Group read_group(WeightType type, const uint8_t* block, int g) {
  Group group{};
  switch (type) {
    case WeightType::q4_0:
      add_nibbles(block + 2, group);
      break;
    case WeightType::q4_1:
      add_nibbles(block + 4, group);
      break;
    case WeightType::q5_0:
      add_nibbles(block + 6, group);
      add_fifth_bits(block + 2, group);
      break;
    case WeightType::q5_1:
      add_nibbles(block + 8, group);
      add_fifth_bits(block + 4, group);
      break;
    case WeightType::q8_0:
      std::memcpy(group.elements, block + 2, kGroup);
      break;
    case WeightType::q6_k:
      read_q6_k(block, g, group);
      break;
    default:
      read_k_quant(block, type == WeightType::q5_k, g, group);
  }
  return group;
}

// The halves are at the start of a block, those of Q6_K at its end.
const uint8_t* halves_of(WeightType type, const uint8_t* block) {
  return type == WeightType::q6_k ? block + 208 : block;
}

// ---- a group of one row in a panel ----

void put_elements(const uint8_t* elements, int bits, int rows, int row, uint8_t* to) {
  const int vector = rows * 4;
  to += row * 4;
  for (int i = 0; i < kGroup; ++i) {
    const int quad = i / 4, j = i % 4, e = elements[i];
    if (bits == 8) {
      to[quad * vector + j] = elements[i];
      continue;
    }
    const auto add = [&](int index, int value) {
      uint8_t& byte = to[index * vector + j];
      byte = static_cast<uint8_t>(byte | value);
    };
    add(quad % 4, (e & 15) << quad / 4 * 4);
    if (bits == 5) add(4, e >> 4 << quad);
    if (bits == 6) add(4 + quad / 4, e >> 4 << quad % 4 * 2);
  }
}

int element_at(const uint8_t* from, int bits, int rows, int row, int i) {
  const int vector = rows * 4, quad = i / 4;
  from += row * 4 + i % 4;
  if (bits == 8) return static_cast<std::int8_t>(from[quad * vector]);
  int e = from[quad % 4 * vector] >> quad / 4 * 4 & 15;
  if (bits == 5) e |= (from[4 * vector] >> quad & 1) << 4;
  if (bits == 6) e |= (from[(4 + quad / 4) * vector] >> quad % 4 * 2 & 3) << 4;
  return e;
}

// Stores scale and minimum of one row among those of all rows.
void put_halves(const uint8_t* halves, bool has_minimum, int rows, int row, uint8_t* to) {
  std::memcpy(to + 2 * row, halves, 2);
  if (has_minimum) std::memcpy(to + 2 * (rows + row), halves + 2, 2);
}

void put_byte_scales(const Group& group, bool has_minimum, int rows, int row, uint8_t* to) {
  to[has_minimum ? row : 2 * row] = group.scales[0];
  to[has_minimum ? rows + row : 2 * row + 1] = group.scales[1];
}

void pack_quantised_row(WeightType type, int rows, int row, int64_t columns, const uint8_t* blocks,
                        uint8_t* panel) {
  const GroupFormat format = group_format(type);
  const PanelLayout layout = panel_layout(type, rows);
  const int64_t source_bytes = info_of(type).block_bytes;
  for (int64_t column = 0; column < columns; column += layout.groups_per_block * kGroup) {
    const uint8_t* halves = halves_of(type, blocks);
    if (format.has_byte_scales) put_halves(halves, format.has_minimum, rows, row, panel);
    for (int g = 0; g < layout.groups_per_block; ++g) {
      uint8_t* to = panel + layout.header_bytes + g * layout.group_bytes;
      const Group group = read_group(type, blocks, g);
      put_elements(group.elements, format.bits, rows, row, to);
      to += layout.element_bytes;
      if (format.has_byte_scales)
        put_byte_scales(group, format.has_minimum, rows, row, to);
      else
        put_halves(halves, format.has_minimum, rows, row, to);
    }
    blocks += source_bytes;
    panel += layout.block_bytes;
  }
}

// Unpacks the groups of a panel to floats.
void unpack_group(WeightType type, int rows, int row, const uint8_t* header, const uint8_t* group,
                  float* out) {
  const GroupFormat format = group_format(type);
  const uint8_t* scales = group + panel_layout(type, rows).element_bytes;
  const uint8_t* halves = format.has_byte_scales ? header : scales;
  const float half_scale = half(halves + 2 * row);
  const float half_minimum = format.has_minimum ? half(halves + 2 * (rows + row)) : 0.0f;
  for (int i = 0; i < kGroup; ++i) {
    float scale = half_scale, minimum = half_minimum;
    if (format.has_byte_scales && format.has_minimum) {
      scale *= static_cast<float>(scales[row]);
      minimum *= -static_cast<float>(scales[rows + row]);
    } else if (format.has_byte_scales) {
      scale *= static_cast<float>(static_cast<std::int8_t>(scales[2 * row + i / 16]));
    }
    const int e = element_at(group, format.bits, rows, row, i) - format.zero_point;
    out[i] = scale * static_cast<float>(e);
    if (format.has_minimum) out[i] += minimum;
  }
}

// ---- floats ----

int element_bytes(const Stored& stored) {
  return static_cast<int>(info_of(stored.type).block_bytes);
}

// Byte offset of an element in a panel.
int64_t element_offset(const Stored& stored, int rows, int row, int64_t column) {
  const int64_t side_by_side = stored.is_paired ? 2 : 1;
  return ((column / side_by_side * rows + row) * side_by_side + column % side_by_side) *
         element_bytes(stored);
}

void pack_float_row(WeightType type, const Stored& stored, int rows, int row, int64_t columns,
                    const std::byte* weights, uint8_t* panel) {
  const WeightTypeInfo& info = info_of(type);
  const int bytes = element_bytes(stored);
  float values[256];
  for (int64_t first = 0; first < columns; first += 256) {
    const int64_t count = std::min<int64_t>(256, columns - first);
    const std::byte* from = weights + info.bytes_of(first);
    if (type != stored.type) dequantise(type, from, count, values);
    for (int64_t i = 0; i < count; ++i) {
      uint8_t* to = panel + element_offset(stored, rows, row, first + i);
      if (type != stored.type)
        write(values[i], to);
      else
        std::memcpy(to, from + i * bytes, static_cast<std::size_t>(bytes));
    }
  }
}

}  // namespace

int64_t panel_bytes(const Stored& stored, int panel_rows, int64_t columns) {
  if (!is_quantised(stored.type)) {
    const int64_t held = stored.is_paired ? round_up<int64_t>(columns, 2) : columns;
    return held * panel_rows * element_bytes(stored);
  }
  const PanelLayout layout = panel_layout(stored.type, panel_rows);
  return columns / (layout.groups_per_block * kGroup) * layout.block_bytes;
}

void pack_panel(WeightType type, const Stored& stored, int panel_rows, int64_t rows,
                int64_t columns, const std::byte* weights, std::byte* panel) {
  const int64_t bytes = panel_bytes(stored, panel_rows, columns);
  std::memset(panel, 0, static_cast<std::size_t>(bytes));
  const WeightTypeInfo& info = info_of(type);
  const int64_t row_bytes = info.bytes_of(columns);
  auto* to = reinterpret_cast<uint8_t*>(panel);
  for (int row = 0; row < rows; ++row, weights += row_bytes) {
    if (is_quantised(stored.type))
      pack_quantised_row(type, panel_rows, row, columns, reinterpret_cast<const uint8_t*>(weights),
                         to);
    else
      pack_float_row(type, stored, panel_rows, row, columns, weights, to);
  }
}

void unpack_panel_row(const Stored& stored, int panel_rows, int row, int64_t columns,
                      const std::byte* panel, float* out) {
  const auto* from = reinterpret_cast<const uint8_t*>(panel);
  if (!is_quantised(stored.type)) {
    for (int64_t i = 0; i < columns; ++i)
      dequantise(stored.type, panel + element_offset(stored, panel_rows, row, i), 1, out + i);
    return;
  }
  const PanelLayout layout = panel_layout(stored.type, panel_rows);
  for (int64_t column = 0; column < columns; from += layout.block_bytes)
    for (int g = 0; g < layout.groups_per_block; ++g, column += kGroup)
      unpack_group(stored.type, panel_rows, row, from,
                   from + layout.header_bytes + g * layout.group_bytes, out + column);
}

}  // namespace headrace::cpu::gemm
