// The pointers of one softmax call, validated. The axis that is summed over is the row; every other
// axis numbers rows. Strides are in elements.
#pragma once

#include <cstdint>

#include "headrace/tensor.hpp"

namespace headrace {

inline constexpr int kMaxRowAxes = HEADRACE_MAX_RANK - 1;

// All rows of a call: the axes that number them, outermost first, those that lie behind each other
// in every operand merged into one.
struct RowSpace {
  std::int64_t num_rows = 0;
  std::int64_t length = 0;  // elements of a row
  int num_axes = 0;
  std::int64_t sizes[kMaxRowAxes] = {};
};

struct RowOperand {
  void* data = nullptr;                    // null: not wanted
  std::int64_t stride = 0;                 // along the row; of an lse 0
  std::int64_t strides[kMaxRowAxes] = {};  // from row to row, an entry for each axis of the space
};

enum class SoftmaxAlgorithm : std::int32_t {
  automatic = HEADRACE_SOFTMAX_AUTO,  // the faster one, by the length of a row alone
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
