// Tensor maps for TMA. Sizes and box are known when a plan is made and kept as a TensorMapSpec;
// address and strides are known at launch, which encodes the map.
#pragma once

#include <cstdint>

#include "backends/cuda/device/types.cuh"
#include "base/error.h"
#include "headrace/tensor.hpp"

namespace headrace::cuda {

// How much of L2 a read of DRAM fills. 256 bytes suit tiles that are read again; of operands that
// stream through once they cost 8 % of the bandwidth.
enum class L2Promotion { bytes_128, bytes_256 };

struct TensorMapSpec {
  DType dtype = DType::bf16;
  int rank = 2;                // 2 to 5; axis 0 is the innermost and has stride 1
  std::int64_t sizes[5] = {};  // elements
  std::uint32_t box[5] = {};   // elements; axis 0: at most 128 bytes with the swizzle
  bool is_swizzled = true;     // 128-byte swizzle; otherwise the rows of the box are contiguous
  L2Promotion l2_promotion = L2Promotion::bytes_256;
};

// Empty if TMA takes the tensor, else the reason: address and strides must be aligned to 16 bytes,
// sizes and strides must fit their fields.
std::string tensor_map_refusal(const TensorMapSpec& spec, const void* data,
                               const std::int64_t* strides);

// strides[i]: stride of axis i in elements; strides[0] is not read.
Status encode_tensor_map(const TensorMapSpec& spec, const void* data, const std::int64_t* strides,
                         TensorMap& map);

// Replaces the address (aligned to 16 bytes).
Status move_tensor_map(TensorMap& map, const void* data);

}  // namespace headrace::cuda
