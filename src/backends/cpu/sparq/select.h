// Top-r and top-k of SparQ attention.
#pragma once

#include <cstdint>

namespace headrace::cpu {

// The indices of the `count` largest values of a list without negative values, ascending, among
// equals the lowest; NaN counts as larger than any number. 0 <= count <= size. `candidates`: memory
// of `size` numbers.
void select_largest(const float* values, std::int64_t size, std::int64_t count,
                    std::int32_t* candidates, std::int32_t* indices);

}  // namespace headrace::cpu
