// Packs weights of a model file to panels, and unpacks a row to floats. Plain loops, no SIMD.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cpu/gemm/layout.h"

namespace headrace::cpu::gemm {

// Size in bytes of a panel of `panel_rows` rows of `stored` elements.
std::int64_t panel_bytes(const Stored& stored, int panel_rows, std::int64_t columns);

// Packs one panel with `rows` <= panel_rows rows of the weights: contiguous rows of blocks of
// `type`. `stored.type` is `type`, or f32.
void pack_panel(WeightType type, const Stored& stored, int panel_rows, std::int64_t rows,
                std::int64_t columns, const std::byte* weights, std::byte* panel);

// Unpacks row `row` of a panel, out [columns]: the values of dequantise().
void unpack_panel_row(const Stored& stored, int panel_rows, int row, std::int64_t columns,
                      const std::byte* panel, float* out);

}  // namespace headrace::cpu::gemm
