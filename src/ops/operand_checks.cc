#include "ops/operand_checks.h"

#include "attention/overlap.h"
#include "attention/tensor_checks.h"

namespace headrace {
namespace {

bool is_same_view(const headrace_tensor& a, const headrace_tensor& b) {
  for (int i = 0; i < a.rank; ++i)
    if (a.shape[i] > 1 && a.strides[i] != b.strides[i]) return false;
  return a.data == b.data;
}

}  // namespace

Status check_activation_dtype(const NamedTensor& tensor) {
  const auto dtype = static_cast<DType>(tensor.view->dtype);
  if (dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16) return std::nullopt;
  return invalid_argument("{}.dtype={}: must be f32, f16 or bf16; convert {}", tensor.name,
                          dtype_name(dtype), tensor.name);
}

Status check_same_device(const NamedTensor& other, const NamedTensor& first) {
  const headrace_tensor &a = *other.view, &b = *first.view;
  if (a.device_type == b.device_type &&
      (a.device_type == HEADRACE_CPU || a.device_id == b.device_id))
    return std::nullopt;
  return invalid_argument(
      "{}.device_type={}, {}.device_id={}: must equal {}.device_type={}, {}.device_id={}; copy {} "
      "to that device",
      other.name, a.device_type, other.name, a.device_id, first.name, b.device_type, first.name,
      b.device_id, other.name);
}

Status check_overlap(const NamedTensor& output, const NamedTensor& other, bool may_be_same) {
  if (!is_given(*other.view) || (may_be_same && is_same_view(*output.view, *other.view)))
    return std::nullopt;
  const Overlap found = overlap_between(*output.view, address_range(*output.view), *other.view,
                                        address_range(*other.view));
  if (found == Overlap::none) return std::nullopt;
  return invalid_argument(
      "{} {} {}: an output must share no memory with another tensor{}; write {} to memory of its "
      "own",
      output.name, found == Overlap::certain ? "overlaps" : "cannot be told apart from", other.name,
      may_be_same ? " (but it may be the same view)" : "", output.name);
}

Status check_within(const NamedTensor& output) {
  const Overlap found = overlap_within(*output.view);
  if (found == Overlap::none) return std::nullopt;
  return invalid_argument(
      "{} {} itself: two indices must not lie on one element of an output; write {} to memory of "
      "its own",
      output.name, found == Overlap::certain ? "overlaps" : "cannot be told apart from",
      output.name);
}

Status check_no_stream(Stream stream) {
  if (stream == nullptr) return std::nullopt;
  return invalid_argument("stream={}: must be NULL on CPU; pass NULL", stream);
}

}  // namespace headrace
