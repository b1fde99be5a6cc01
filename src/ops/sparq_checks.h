// Checks and views of operands that SparQ attention and its append share.
#pragma once

#include <span>

#include "attention/tensor_checks.h"
#include "core/sparq_args.h"
#include "ops/operand_checks.h"

namespace headrace {

inline Status check_sparq_dtype(const NamedTensor& tensor, DType dtype, const char* of) {
  if (static_cast<DType>(tensor.view->dtype) == dtype) return std::nullopt;
  return invalid_argument("{}.dtype={}: must be {}{}; convert {}", tensor.name,
                          dtype_name(static_cast<DType>(tensor.view->dtype)), dtype_name(dtype), of,
                          tensor.name);
}

// A tensor of a fixed dtype and shape on the device of `first`.
inline Status check_sparq_list(const NamedTensor& tensor, DType dtype, std::span<const Axis> layout,
                               const NamedTensor& first) {
  HEADRACE_TRY(check_view(tensor.name, *tensor.view, static_cast<int>(layout.size()),
                          layout_text(layout).c_str()));
  HEADRACE_TRY(check_sparq_dtype(tensor, dtype, ""));
  HEADRACE_TRY(check_shape(tensor.name, *tensor.view, layout));
  return check_same_device(tensor, first);
}

// Axes of size 0 and 1 may have arbitrary strides; kernels get 0.
inline std::int64_t sparq_stride(const headrace_tensor& tensor, int axis) {
  return tensor.shape[axis] > 1 ? tensor.strides[axis] : 0;
}

inline SparqRows sparq_rows(const headrace_tensor& x) {
  if (!is_given(x)) return {};
  return {x.data, sparq_stride(x, 0), sparq_stride(x, 1)};
}
inline Operand sparq_pages(const headrace_tensor& x) {
  if (!is_given(x)) return {};
  return {x.data, sparq_stride(x, 0), sparq_stride(x, 1), sparq_stride(x, 2)};
}
inline KeyComponents sparq_components(const headrace_tensor& x) {
  return {x.data, sparq_stride(x, 0), sparq_stride(x, 1), sparq_stride(x, 2)};
}

}  // namespace headrace
