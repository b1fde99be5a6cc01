// Softmax on a GPU: checks and choice of the kernel.
#include "backends/cuda/softmax/softmax.h"

#include <cstdlib>

#include "backends/cuda/backend.h"
#include "backends/cuda/runtime/device.cuh"
#include "backends/cuda/runtime/operator_device.cuh"
#include "backends/cuda/runtime/pointer.cuh"

namespace headrace::cuda {
namespace {

// Whether every row is contiguous, aligned to 16 bytes and whole 16-byte vectors long.
bool has_vectors(const RowSpace& rows, DType dtype, const RowOperand& x) {
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(dtype));
  if (x.stride != 1 || rows.length * bytes % softmax::kVectorBytes != 0 ||
      reinterpret_cast<std::uintptr_t>(x.data) % softmax::kVectorBytes != 0)
    return false;
  for (int i = 0; i < rows.num_axes; ++i)
    if (x.strides[i] * bytes % softmax::kVectorBytes != 0) return false;
  return true;
}

// Whether adjacent rows are closer in memory than adjacent elements of a row.
bool is_column(const RowSpace& rows, const RowOperand& written) {
  return rows.num_axes > 0 && rows.length > 1 &&
         std::abs(written.strides[rows.num_axes - 1]) < std::abs(written.stride);
}

}  // namespace

Status softmax_forward(const SoftmaxForwardArgs& args, int device_id, Stream stream) {
  HEADRACE_TRY(check_operator_device("softmax", device_id));
  const DeviceScope scope(device_id);
  if (scope.status()) return scope.status();
  HEADRACE_TRY(check_pointer("x", args.x.data, device_id));
  HEADRACE_TRY(check_pointer("y", args.y.data, device_id));
  HEADRACE_TRY(check_pointer("lse", args.lse.data, device_id));
  if (args.rows.num_rows == 0 || (args.rows.length == 0 && args.lse.data == nullptr))
    return std::nullopt;
  const softmax::Config config = softmax::config_of(
      args.rows.length,
      has_vectors(args.rows, args.dtype, args.x) && has_vectors(args.rows, args.dtype, args.y),
      is_column(args.rows, args.y), softmax::kForwardElements);
  switch (args.dtype) {
    case DType::f16:
      return softmax::forward_f16(args, config, stream);
    case DType::bf16:
      return softmax::forward_bf16(args, config, stream);
    default:
      return softmax::forward_f32(args, config, stream);
  }
}

Status softmax_backward(const SoftmaxBackwardArgs& args, int device_id, Stream stream) {
  HEADRACE_TRY(check_operator_device("softmax", device_id));
  const DeviceScope scope(device_id);
  if (scope.status()) return scope.status();
  HEADRACE_TRY(check_pointer("y", args.y.data, device_id));
  HEADRACE_TRY(check_pointer("dy", args.dy.data, device_id));
  HEADRACE_TRY(check_pointer("dx", args.dx.data, device_id));
  if (args.rows.num_rows == 0 || args.rows.length == 0) return std::nullopt;
  const softmax::Config config = softmax::config_of(
      args.rows.length,
      has_vectors(args.rows, args.dtype, args.y) && has_vectors(args.rows, args.dtype, args.dy) &&
          has_vectors(args.rows, args.dtype, args.dx),
      is_column(args.rows, args.dx), softmax::kBackwardElements);
  switch (args.dtype) {
    case DType::f16:
      return softmax::backward_f16(args, config, stream);
    case DType::bf16:
      return softmax::backward_bf16(args, config, stream);
    default:
      return softmax::backward_f32(args, config, stream);
  }
}

}  // namespace headrace::cuda
