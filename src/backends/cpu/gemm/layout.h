// Memory layout of packed matrices and quantized activations: pure arithmetic and structs, shared
// by packing and matmuls.
//
// A *panel* is a few consecutive rows (kRows of the instruction set), interleaved; missing rows are
// zero. A *group* is 32 consecutive columns. A *quad* is 4 consecutive columns: 4 bytes.
//
// Quantized panel: for each block of 1 group (or 8, if they share a pair of halves)
//   [header: scale f16 of each row, minimum f16 of each row]            only for blocks of 8 groups
//   for each group: the elements, then their scales.
// Elements of a group as vectors of kRows x 4 bytes [row][column of the quad], quads 0 to 7:
//   4 bits  vector i of 4: quad i in the low nibbles, quad i + 4 in the high ones
//   5 bits  the same, then one vector with bit q of each byte the fifth bit of quad q
//   6 bits  the same, then two vectors with bits 2q, 2q + 1 those of quad q and of quad q + 4
//   8 bits  eight vectors of signed bytes
// Scales of a group: one f16 per row (then its minimum); in blocks of 8 groups one byte per row
// (then its minimum), or two signed bytes per row, one per 16 columns.
//
// Panel of floats or 16-bit floats: [column][row]; of pairs of bf16: [pair of columns][row][2],
// padded with 0 after an odd last column.
#pragma once

#include <cstdint>

#include "weights/weight_type.h"

namespace headrace::cpu::gemm {

inline constexpr int kGroup = 32;  // columns with one scale
inline constexpr int kQuads = kGroup / 4;
inline constexpr int kSuperGroups = 8;  // groups in a block with shared halves

struct GroupFormat {
  int bits;              // per element
  int zero_point;        // offset of unsigned elements
  bool has_minimum;      // value = scale * element + minimum
  bool has_byte_scales;  // scale = half * byte, blocks of 8 groups
};

constexpr GroupFormat group_format(WeightType type) {
  switch (type) {
    case WeightType::q4_0:
      return {4, 8, false, false};
    case WeightType::q4_1:
      return {4, 0, true, false};
    case WeightType::q5_0:
      return {5, 16, false, false};
    case WeightType::q5_1:
      return {5, 0, true, false};
    case WeightType::q8_0:
      return {8, 0, false, false};
    case WeightType::q4_k:
      return {4, 0, true, true};
    case WeightType::q5_k:
      return {5, 0, true, true};
    case WeightType::q6_k:
      return {6, 32, false, true};
    default:
      return {};
  }
}

constexpr bool is_quantised(WeightType type) { return group_format(type).bits != 0; }

// Storage of a panel's elements.
struct Stored {
  WeightType type;
  bool is_paired = false;  // bf16
};

// Sizes in bytes of the parts of a panel of `rows` rows.
struct PanelLayout {
  int groups_per_block, header_bytes, element_bytes, group_bytes, block_bytes;
};

constexpr PanelLayout panel_layout(WeightType type, int rows) {
  const GroupFormat f = group_format(type);
  const int halves = rows * (f.has_minimum ? 4 : 2);
  PanelLayout x{};
  x.groups_per_block = f.has_byte_scales ? kSuperGroups : 1;
  x.header_bytes = f.has_byte_scales ? halves : 0;
  x.element_bytes = rows * f.bits * kGroup / 8;
  x.group_bytes = x.element_bytes + (f.has_byte_scales ? 2 * rows : halves);
  x.block_bytes = x.header_bytes + x.groups_per_block * x.group_bytes;
  return x;
}

// A group of activations: x = scale * element, element = nearest even of y = x * (127 / max |x|).
// The scale is the least-squares fit for these elements, max |x| / 127 * sum(y element) /
// sum(element^2): it removes one of 32 degrees of freedom from the error at the cost of two sums.
// A group with NaN or infinity has scale NaN; a group below 2^-100 counts as zero.
struct ActivationGroup {
  std::int8_t elements[kGroup];
  float scale;
  float scaled_sum;            // scale * sum of the elements
  std::int16_t minus_sums[2];  // minus the sum of the first 16 elements, of the last 16
  std::int16_t unused[2];
};
static_assert(sizeof(ActivationGroup) == 48);

inline constexpr float kSmallestMagnitude = 0x1p-100f;  // 127 / kSmallestMagnitude is finite

}  // namespace headrace::cpu::gemm
