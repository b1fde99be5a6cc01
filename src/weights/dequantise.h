// Reference dequantization of weight blocks in plain loops. Defines each format; used where speed
// does not matter and as the oracle for the fast matmuls.
#pragma once

#include <cstddef>
#include <cstdint>

#include "weights/weight_type.h"

namespace headrace {

// data: whole blocks of `type` with `elements` values, any alignment. out: [elements].
void dequantise(WeightType type, const std::byte* data, std::int64_t elements, float* out);

// The rows of a matrix [rows, columns] as bf16; columns are whole blocks.
void bf16_rows(WeightType format, std::int64_t rows, std::int64_t columns, const std::byte* blocks,
               std::uint16_t* out);

}  // namespace headrace
