// Checks of a single tensor argument.
#pragma once

#include <span>
#include <string>

#include "base/error.h"
#include "core/codes.h"
#include "headrace/tensor.hpp"

namespace headrace {

// The required size of an axis and the tensor that determines it.
struct Axis {
  const char* name;
  std::int64_t size;
  const char* from;
  bool may_be_one = false;  // size 1 broadcasts
};

// "[2, 128, 8, 64]"
std::string shape_text(const headrace_tensor& tensor);
// "[batch, seqlen_q, num_heads, head_dim]"
std::string layout_text(std::span<const Axis> layout);

inline bool is_given(const headrace_tensor& tensor) {
  return tensor.data != nullptr || tensor.rank != 0;
}
bool has_elements(const headrace_tensor& tensor);

// Checks rank, device type, dtype, non-negative sizes, addressable offsets, alignment, and that
// data is not null unless the tensor is empty.
Status check_view(const char* name, const headrace_tensor& tensor, int rank, const char* layout);

Status check_shape(const char* name, const headrace_tensor& tensor, std::span<const Axis> layout);

// The dtypes of codes, as messages name them.
inline constexpr const char* kCodeNames = "i8, f8e4m3, i4x2, u4x2 or u2x4";
// The codes of a head must be whole bytes. `name`: of the dtype.
Status check_whole_bytes(const char* name, DType dtype, std::int64_t head_dim);

// The last axis must be contiguous.
Status check_inner_stride(const char* name, const headrace_tensor& tensor, const char* axis);

}  // namespace headrace
