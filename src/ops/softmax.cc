#include "ops/softmax.h"

#include "backends/cpu/softmax/softmax.h"
#include "backends/cuda/backend.h"
#include "core/device.h"
#include "ops/operand_checks.h"

namespace headrace {

Status softmax_forward(const headrace_softmax_tensors& tensors,
                       const headrace_softmax_options& options, Stream stream) {
  Result<SoftmaxForwardArgs> args = validate_softmax(tensors, options);
  if (!args.ok()) return std::move(args.failure());
  if (tensors.x.device_type == HEADRACE_CUDA)
    return cuda::softmax_forward(args.value(), tensors.x.device_id, stream);
  if (auto bad = check_no_stream(stream)) return bad;
  Result<DeviceInfo> device = cpu_info();
  if (!device.ok()) return std::move(device.failure());
  return cpu::softmax_forward(args.value(), device.value());
}

Status softmax_backward(const headrace_softmax_backward_tensors& tensors,
                        const headrace_softmax_options& options, Stream stream) {
  Result<SoftmaxBackwardArgs> args = validate_softmax_backward(tensors, options);
  if (!args.ok()) return std::move(args.failure());
  if (tensors.y.device_type == HEADRACE_CUDA)
    return cuda::softmax_backward(args.value(), tensors.y.device_id, stream);
  if (auto bad = check_no_stream(stream)) return bad;
  Result<DeviceInfo> device = cpu_info();
  if (!device.ok()) return std::move(device.failure());
  return cpu::softmax_backward(args.value(), device.value());
}

}  // namespace headrace
