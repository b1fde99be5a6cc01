// The formats of quantised keys and values (headrace_dtype), as far as sizes follow from them.
#pragma once

#include <cstdint>

#include "headrace/tensor.hpp"

namespace headrace {

// Whether k and v may have the dtype though q has another one.
constexpr bool is_code(DType dtype) {
  return dtype == DType::i8 || dtype == DType::f8e4m3 || dtype == DType::i4x2 ||
         dtype == DType::u4x2 || dtype == DType::u2x4;
}
// Codes without a sign, as in KIVI (Liu et al., 2024, arXiv:2402.02750): an element is
// zero + scale * code. Keys have a scale and a zero point for each channel of kZeroPointGroup keys,
// values for each kZeroPointGroup channels of a key.
constexpr bool has_zero_points(DType dtype) { return dtype == DType::u4x2 || dtype == DType::u2x4; }
inline constexpr std::int64_t kZeroPointGroup = 32;

// The positions of quantised keys count in groups: a query sees the keys of its own group
// unquantised. A constant of the formats, whatever the page size; pages are whole groups.
constexpr std::int64_t recent_group_of(DType k_dtype) {
  return has_zero_points(k_dtype) ? kZeroPointGroup : 16;
}

// In a byte; 1 for every dtype that is not packed.
constexpr std::int64_t codes_per_byte(DType dtype) {
  return dtype == DType::u2x4 ? 4 : dtype == DType::i4x2 || dtype == DType::u4x2 ? 2 : 1;
}
// Elements of an axis, and the size of an axis of elements, of which packed ones count in bytes.
constexpr std::int64_t elements_of(DType dtype, std::int64_t size) {
  return size * codes_per_byte(dtype);
}
constexpr std::int64_t stored_size(DType dtype, std::int64_t elements) {
  return elements / codes_per_byte(dtype);
}

// Scales of one head: of a key or, with zero points, of a group of keys or of a value.
constexpr std::int64_t scales_of_key(DType dtype, std::int64_t head_dim) {
  return has_zero_points(dtype) ? head_dim : 1;
}
constexpr std::int64_t scales_of_value(DType dtype, std::int64_t head_dim_v) {
  return has_zero_points(dtype) ? (head_dim_v + kZeroPointGroup - 1) / kZeroPointGroup : 1;
}

}  // namespace headrace
