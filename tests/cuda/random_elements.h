// Numbers of a 16-bit format for tests on a GPU.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dtype.h"
#include "support/random.h"

namespace headrace::testing {

// Normal, times `size`.
inline std::vector<std::uint16_t> random_elements(DType dtype, std::int64_t count,
                                                  std::uint64_t seed, double size = 1) {
  Random random(seed);
  std::vector<std::uint16_t> elements(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    store_from_double(dtype, elements.data(), i, size * random.normal());
  return elements;
}

}  // namespace headrace::testing
