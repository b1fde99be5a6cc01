// Random normal numbers: number i is a function of (seed, stream, i), with the same bits on every
// machine. Only IEEE operations that round exactly are used, so no libm.
#pragma once

#include <cstdint>
#include <span>

namespace headrace {

// out[i] = number first + i, with mean 0 and standard deviation 1; magnitudes stay below 5.8.
// `first` is a multiple of 4.
void random_normals(std::uint64_t seed, std::uint32_t stream, std::int64_t first,
                    std::span<float> out);

}  // namespace headrace
