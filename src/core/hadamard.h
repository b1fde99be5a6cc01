// The Hadamard matrix that queries and keys are multiplied with before keys are quantised to few
// bits: it spreads the channels with large elements over a head, and changes no score, because it
// is orthogonal. Sylvester's order, over sqrt(n): symmetric, its own inverse. After Ashkboos et
// al., "QuaRot", 2024, arXiv:2404.00456.
#pragma once

#include <cmath>
#include <cstdint>

namespace headrace {

// A head is multiplied in blocks of this many elements: the largest power of two that divides it.
constexpr std::int64_t hadamard_block(std::int64_t head_dim) { return head_dim & -head_dim; }

inline float hadamard_scale(std::int64_t block) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(block)));
}

}  // namespace headrace
