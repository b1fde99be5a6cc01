// Blocks of quantised weights as floats, in plain loops: the meaning of each format, used where
// speed does not matter and as the oracle of the products that do.
#pragma once

#include <cstddef>
#include <cstdint>

#include "weights/weight_type.h"

namespace headrace {

// data: `elements` values in whole blocks of `type`, any alignment. out [elements].
void dequantise(WeightType type, const std::byte* data, std::int64_t elements, float* out);

}  // namespace headrace
