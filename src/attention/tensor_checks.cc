#include "attention/tensor_checks.h"

#include <algorithm>

namespace headrace {
namespace {

Status check_enums(const char* name, const headrace_tensor& tensor) {
  if (tensor.device_type != HEADRACE_CPU && tensor.device_type != HEADRACE_CUDA)
    return invalid_argument(
        "{}.device_type={}: must be 0 (cpu) or 1 (cuda); set it to the device of {}", name,
        tensor.device_type, name);
  if (dtype_bytes(static_cast<DType>(tensor.dtype)) == 0)
    return invalid_argument(
        "{}.dtype={}: must be a headrace_dtype (0 to 12); set it to the dtype of {}", name,
        tensor.dtype, name);
  return std::nullopt;
}

// The offsets of all elements, in bytes, must fit an int64 and the address space.
Status check_reach(const char* name, const headrace_tensor& tensor) {
  std::int64_t low = 0;
  std::int64_t high = 0;
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(static_cast<DType>(tensor.dtype)));
  for (int i = 0; i < tensor.rank; ++i) {
    std::int64_t reach = 0;
    std::int64_t& side = tensor.strides[i] < 0 ? low : high;
    if (tensor.strides[i] == INT64_MIN ||
        __builtin_mul_overflow(tensor.shape[i] - 1, tensor.strides[i], &reach) ||
        __builtin_mul_overflow(reach, bytes, &reach) ||
        __builtin_add_overflow(side, reach, &side) || side > INT64_MAX - bytes || side < -INT64_MAX)
      return invalid_argument(
          "{}.strides[{}]={} with {}.shape[{}]={}: byte offsets must fit 64 bits; correct the "
          "shape and strides (strides are in elements)",
          name, i, tensor.strides[i], name, i, tensor.shape[i]);
  }
  const auto data = reinterpret_cast<std::uintptr_t>(tensor.data);
  const auto above = static_cast<std::uintptr_t>(high + bytes);
  const auto below = static_cast<std::uintptr_t>(-low);
  if (data != 0 && (data + above < data || data < below))
    return invalid_argument(
        "{}: shape {} with its strides spans {} bytes below data to {} bytes above it: all "
        "elements "
        "must lie within the address space; correct data, shape and strides",
        name, shape_text(tensor), below, above);
  return std::nullopt;
}

Status check_data(const char* name, const headrace_tensor& tensor) {
  if (tensor.data == nullptr)
    return invalid_argument(
        "{}.data=NULL: must point to the elements of shape {}; pass the data (only an empty tensor "
        "may have NULL)",
        name, shape_text(tensor));
  const std::size_t bytes = dtype_bytes(static_cast<DType>(tensor.dtype));
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % bytes != 0)
    return invalid_argument(
        "{}.data={}: must be a multiple of the {} bytes of a {} element; pass aligned data", name,
        tensor.data, bytes, dtype_name(static_cast<DType>(tensor.dtype)));
  return std::nullopt;
}

}  // namespace

std::string shape_text(const headrace_tensor& tensor) {
  std::string text = "[";
  for (int i = 0; i < tensor.rank; ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(tensor.shape[i]);
  return text + "]";
}

std::string layout_text(std::span<const Axis> layout) {
  std::string text = "[";
  for (const Axis& axis : layout) text += (text.size() == 1 ? "" : ", ") + std::string(axis.name);
  return text + "]";
}

Status check_whole_bytes(const char* name, DType dtype, std::int64_t head_dim) {
  if (head_dim % codes_per_byte(dtype) == 0) return std::nullopt;
  return invalid_argument(
      "{}={} with heads of {} elements: must be a multiple of {}, the codes of a byte; use i8",
      name, dtype_name(dtype), head_dim, codes_per_byte(dtype));
}

bool has_elements(const headrace_tensor& tensor) {
  return std::none_of(tensor.shape, tensor.shape + tensor.rank,
                      [](std::int64_t size) { return size == 0; });
}

Status check_view(const char* name, const headrace_tensor& tensor, int rank, const char* layout) {
  if (tensor.rank != rank)
    return invalid_argument("{}.rank={}: must be {}; pass {} as {}", name, tensor.rank, rank, name,
                            layout);
  if (auto bad = check_enums(name, tensor)) return bad;
  for (int i = 0; i < rank; ++i) {
    if (tensor.shape[i] < 0)
      return invalid_argument("{}.shape[{}]={}: must not be negative; pass {} as {}", name, i,
                              tensor.shape[i], name, layout);
  }
  if (!has_elements(tensor)) return std::nullopt;
  if (auto bad = check_reach(name, tensor)) return bad;
  return check_data(name, tensor);
}

Status check_shape(const char* name, const headrace_tensor& tensor, std::span<const Axis> layout) {
  for (std::size_t i = 0; i < layout.size(); ++i) {
    const Axis& axis = layout[i];
    if (tensor.shape[i] == axis.size || (axis.may_be_one && tensor.shape[i] == 1)) continue;
    return invalid_argument("{}.shape[{}]={}: must equal {}={} of {}{}; pass {} as {}", name, i,
                            tensor.shape[i], axis.name, axis.size, axis.from,
                            axis.may_be_one ? " or 1" : "", name, layout_text(layout));
  }
  return std::nullopt;
}

Status check_inner_stride(const char* name, const headrace_tensor& tensor, const char* axis) {
  const int last = tensor.rank - 1;
  if (tensor.shape[last] <= 1 || tensor.strides[last] == 1 || !has_elements(tensor))
    return std::nullopt;
  return invalid_argument(
      "{}.strides[{}]={}: must be 1 ({} must be contiguous; all other strides are free); copy {} "
      "to "
      "such a layout",
      name, last, tensor.strides[last], axis, name);
}

}  // namespace headrace
