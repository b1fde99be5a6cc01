#include "ops/merge_states.h"

#include "backends/cpu/elementwise/merge_states.h"
#include "backends/cuda/backend.h"
#include "core/device.h"
#include "ops/operand_checks.h"

namespace headrace {

Status merge_states(const headrace_merge_states_tensors& tensors, Stream stream) {
  Result<MergeStatesArgs> args = validate_merge_states(tensors);
  if (!args.ok()) return std::move(args.failure());
  if (tensors.out.device_type == HEADRACE_CUDA)
    return cuda::merge_states(args.value(), tensors.out.device_id, stream);
  HEADRACE_TRY(check_no_stream(stream));
  Result<DeviceInfo> device = cpu_info();
  if (!device.ok()) return std::move(device.failure());
  return cpu::merge_states(args.value(), device.value());
}

}  // namespace headrace
