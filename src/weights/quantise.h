// Encodes weights into the blocks of a format: the inverse of dequantise(), by the extremes of each
// block. Used where files are made; no search for better scales.
#pragma once

#include <cstddef>
#include <cstdint>

#include "weights/weight_type.h"

namespace headrace {

// values: [elements], finite, whole blocks of `type`. out: their bytes, any alignment.
void quantise(WeightType type, const float* values, std::int64_t elements, std::byte* out);

}  // namespace headrace
