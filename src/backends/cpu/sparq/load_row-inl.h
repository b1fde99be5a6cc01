// A row of K or V as floats, compiled for every instruction set (Vec).
#pragma once

#include "backends/cpu/simd/element.h"
#include "core/quantise.h"
#include "core/sparq_args.h"

namespace headrace::cpu {

template <class Vec>
struct LoadRow {
  static constexpr int kWidth = Vec::kWidth;

  // to[dim] = scale * from
  template <class E>
  static void scale_elements(const E* from, float scale, std::int64_t dim, float* to) {
    std::int64_t i = 0;
    for (; i + kWidth <= dim; i += kWidth)
      Vec::store(to + i, Vec::mul(Vec::load(from + i), Vec::set1(scale)));
    if (i < dim) {
      const int rest = static_cast<int>(dim - i);
      Vec::store_partial(to + i, Vec::mul(Vec::load_partial(from + i, rest), Vec::set1(scale)),
                         rest);
    }
  }

  static void load_unsigned(const KeyRow& row, std::int64_t dim, float* to) {
    const auto* bytes = static_cast<const std::uint8_t*>(row.data);
    const int bits = row.dtype == DType::u2x4 ? 2 : 4;
    for (std::int64_t d = 0; d < dim; ++d) {
      const ScaleAndZero x = unpack_scale(row.scales.words[d / row.scales.channels]);
      to[d] = x.zero + x.scale * static_cast<float>(unsigned_code(bits, bytes, row.offset + d));
    }
  }

  // Rows of packed codes begin with a byte.
  static void load_int4(const KeyRow& row, std::int64_t dim, float* to) {
    const auto* pairs = static_cast<const std::uint8_t*>(row.data) + row.offset / 2;
    Int8 codes[kMaxSparqDim];
    for (std::int64_t i = 0; i < dim / 2; ++i) {
      codes[2 * i] = {static_cast<std::int8_t>((pairs[i] & 15) - 8)};
      codes[2 * i + 1] = {static_cast<std::int8_t>((pairs[i] >> 4) - 8)};
    }
    scale_elements(codes, row.scale, dim, to);
  }

  static void load(const KeyRow& row, std::int64_t dim, float* to) {
    switch (row.dtype) {
      case DType::i8:
        return scale_elements(static_cast<const Int8*>(row.data) + row.offset, row.scale, dim, to);
      case DType::f8e4m3:
        return scale_elements(static_cast<const E4m3*>(row.data) + row.offset,
                              row.scale / kE4m3Unit, dim, to);
      case DType::i4x2:
        return load_int4(row, dim, to);
      case DType::u4x2:
      case DType::u2x4:
        return load_unsigned(row, dim, to);
      case DType::f16:
        return scale_elements(static_cast<const F16*>(row.data) + row.offset, 1.0f, dim, to);
      case DType::bf16:
        return scale_elements(static_cast<const Bf16*>(row.data) + row.offset, 1.0f, dim, to);
      default:
        return scale_elements(static_cast<const float*>(row.data) + row.offset, 1.0f, dim, to);
    }
  }
};

}  // namespace headrace::cpu
