// The pointers of one validated softmax call. A row lies along the softmax axis; all other axes
// index rows. Strides are in elements.
#pragma once

#include <cstdint>

#include "headrace/tensor.hpp"

namespace headrace {

inline constexpr int kMaxRowAxes = HEADRACE_MAX_RANK - 1;

// The row axes of a call, outermost first; axes that are contiguous in every operand are merged.
struct RowSpace {
  std::int64_t num_rows = 0;
  std::int64_t length = 0;  // elements of a row
  int num_axes = 0;
  std::int64_t sizes[kMaxRowAxes] = {};
};

struct RowOperand {
  void* data = nullptr;                    // null: not computed
  std::int64_t stride = 0;                 // along the row; 0 for lse
  std::int64_t strides[kMaxRowAxes] = {};  // along each row axis
};

enum class SoftmaxAlgorithm : std::int32_t {
  automatic = HEADRACE_SOFTMAX_AUTO,  // the faster one; depends only on the row length
  safe = HEADRACE_SOFTMAX_SAFE,
  online = HEADRACE_SOFTMAX_ONLINE,
};

struct SoftmaxForwardArgs {
  DType dtype = DType::f32;  // of x and y; f32, f16 or bf16
  SoftmaxAlgorithm algorithm = SoftmaxAlgorithm::automatic;
  float scale = 1;
  RowSpace rows;
  RowOperand x, y;
  RowOperand lse;  // f32, may be null
};

struct SoftmaxBackwardArgs {
  DType dtype = DType::f32;  // of y, dy and dx
  float scale = 1;
  RowSpace rows;
  RowOperand y, dy, dx;
};

}  // namespace headrace
