// Tensor maps for the copy engine. What a map holds beside the shape of the box, address and
// strides, is known when a plan runs: a plan holds a TensorMapSpec, a launch encodes it.
#pragma once

#include <cstdint>

#include "backends/cuda/device/types.cuh"
#include "base/error.h"
#include "headrace/tensor.hpp"

namespace headrace::cuda {

struct TensorMapSpec {
  DType dtype = DType::bf16;
  int rank = 2;                // 2 to 5; axis 0 is the innermost and has stride 1
  std::int64_t sizes[5] = {};  // elements
  std::uint32_t box[5] = {};   // elements; axis 0: at most 128 bytes with the swizzle
  bool is_swizzled = true;     // 128 bytes; else rows of the box follow each other
};

// Whether the copy engine takes such a tensor: 16-byte alignment of address and strides, sizes and
// strides within its fields. Empty, or the reason for a refusal.
std::string tensor_map_refusal(const TensorMapSpec& spec, const void* data,
                               const std::int64_t* strides);

// strides[i]: of axis i, in elements; strides[0] is not read.
Status encode_tensor_map(const TensorMapSpec& spec, const void* data, const std::int64_t* strides,
                         TensorMap& map);

// The same tensor at another address (aligned to 16 bytes).
Status move_tensor_map(TensorMap& map, const void* data);

}  // namespace headrace::cuda
