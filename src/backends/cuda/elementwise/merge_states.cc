// A merge of attention states on a GPU: checks.
#include "backends/cuda/elementwise/merge_states.h"

#include "backends/cuda/backend.h"
#include "backends/cuda/runtime/device.cuh"
#include "backends/cuda/runtime/operator_device.cuh"
#include "backends/cuda/runtime/pointer.cuh"

namespace headrace::cuda {

Status merge_states(const MergeStatesArgs& args, int device_id, Stream stream) {
  HEADRACE_TRY(check_operator_device("merge_states", device_id));
  const DeviceScope scope(device_id);
  if (scope.status()) return scope.status();
  for (int i = 0; i < args.num_states; ++i) {
    HEADRACE_TRY(check_pointer("outs", args.outs[i], device_id));
    HEADRACE_TRY(check_pointer("lses", args.lses[i], device_id));
  }
  HEADRACE_TRY(check_pointer("out", args.out.data, device_id));
  HEADRACE_TRY(check_pointer("lse", args.lse.data, device_id));
  if (num_rows(args) == 0) return std::nullopt;
  return merge::launch(args, stream);
}

}  // namespace headrace::cuda
