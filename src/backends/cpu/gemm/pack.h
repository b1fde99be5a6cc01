// Weights of a model file -> panels, and a row back to floats. No instruction set: plain loops.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cpu/gemm/layout.h"

namespace headrace::cpu::gemm {

// Bytes of a panel of `panel_rows` rows of `stored` elements.
std::int64_t panel_bytes(const Stored& stored, int panel_rows, std::int64_t columns);

// One panel, `rows` <= panel_rows rows of it from the weights: blocks of `type`, rows one behind
// the other. `stored.type` is `type`, or f32.
void pack_panel(WeightType type, const Stored& stored, int panel_rows, std::int64_t rows,
                std::int64_t columns, const std::byte* weights, std::byte* panel);

// Row `row` of a panel, out [columns]: the values of dequantise().
void unpack_panel_row(const Stored& stored, int panel_rows, int row, std::int64_t columns,
                      const std::byte* panel, float* out);

}  // namespace headrace::cpu::gemm
