// Factors that make the channels of keys alike in size, from the weights alone
// (docs/design/0008-channel-factors.md).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/config.h"

namespace headrace::model {

// The variance of every channel that a matrix [rows, columns] makes of rows with an RMS of 1, after
// their norm: the sum of (weight * norm)^2 along a row.
std::vector<float> row_variances(std::span<const float> matrix, std::span<const float> norm);

// `bias` and `variances` of the keys of a layer, [num_kv_heads * head_dim]. Factors of the same
// shape for headrace_kv_append_tensors: powers of two, 1 for the median channel of a head, equal
// for the two channels of a rotated pair.
std::vector<float> channel_factors(const Config& config, std::span<const float> bias,
                                   std::span<const float> variances);

}  // namespace headrace::model
