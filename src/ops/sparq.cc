#include "ops/sparq.h"

#include "backends/cpu/sparq/sparq.h"
#include "backends/cuda/backend.h"
#include "base/math.h"
#include "core/aligned.h"
#include "core/device.h"
#include "ops/operand_checks.h"

namespace headrace {
namespace {

Status check_workspace(const Workspace& workspace, std::size_t needed) {
  const std::size_t given = workspace.data == nullptr ? 0 : workspace.bytes;
  if (given >= needed) return std::nullopt;
  return invalid_argument(
      "workspace of {} bytes{}: SparQ attention needs {}; allocate "
      "headrace_sparq_workspace_bytes() bytes, or pass NULL with 0 bytes",
      workspace.bytes, workspace.data == nullptr ? " at NULL" : "", needed);
}

Status run_on_cpu(const SparqArgs& args, Workspace workspace) {
  HEADRACE_TRY(check_sparq_lengths(args));
  Result<DeviceInfo> device = cpu_info();
  if (!device.ok()) return std::move(device.failure());
  const std::size_t needed = cpu::sparq_workspace_bytes(args, device.value());
  Aligned<std::byte> owned;
  if (workspace.data == nullptr && workspace.bytes == 0 && needed > 0) {
    owned = Aligned<std::byte>(needed);
    if (owned.get() == nullptr)
      return Failure{ErrorCode::out_of_memory,
                     format_text("a workspace of {} bytes for SparQ attention cannot be allocated; "
                                 "pass fewer keys or free memory",
                                 needed)};
    workspace = {owned.get(), needed};
  }
  HEADRACE_TRY(check_workspace(workspace, needed));
  return cpu::sparq_attention(args, device.value(), workspace.data);
}

Status run_on_cuda(const SparqArgs& args, int device_id, Workspace workspace, Stream stream) {
  const std::size_t needed = cuda::sparq_workspace_bytes(args);
  cuda::Scratch owned;
  if (workspace.data == nullptr && workspace.bytes == 0 && needed > 0) {
    Result<cuda::Scratch> scratch = cuda::allocate_scratch(needed, device_id, stream);
    if (!scratch.ok()) return std::move(scratch.failure());
    owned = std::move(scratch.value());
    workspace = {owned.get(), needed};
  }
  HEADRACE_TRY(check_workspace(workspace, needed));
  return cuda::sparq_attention(args, device_id, workspace.data, stream);
}

}  // namespace

Result<std::size_t> sparq_workspace_bytes(const headrace_sparq_tensors& tensors,
                                          const headrace_sparq_options& options) {
  Result<SparqArgs> args = validate_sparq(tensors, options);
  if (!args.ok()) return std::move(args.failure());
  if (tensors.q.device_type == HEADRACE_CUDA) return cuda::sparq_workspace_bytes(args.value());
  Result<DeviceInfo> device = cpu_info();
  if (!device.ok()) return std::move(device.failure());
  return cpu::sparq_workspace_bytes(args.value(), device.value());
}

Status sparq_attention(const headrace_sparq_tensors& tensors, const headrace_sparq_options& options,
                       Workspace workspace, Stream stream) {
  Result<SparqArgs> args = validate_sparq(tensors, options);
  if (!args.ok()) return std::move(args.failure());
  if (tensors.q.device_type == HEADRACE_CUDA)
    return run_on_cuda(args.value(), tensors.q.device_id, workspace, stream);
  HEADRACE_TRY(check_no_stream(stream));
  return run_on_cpu(args.value(), workspace);
}

Status sparq_append(const headrace_sparq_append_tensors& tensors, Stream stream) {
  Result<SparqAppendArgs> args = validate_sparq_append(tensors);
  if (!args.ok()) return std::move(args.failure());
  if (tensors.k.device_type == HEADRACE_CUDA)
    return cuda::sparq_append(args.value(), tensors.k.device_id, stream);
  HEADRACE_TRY(check_no_stream(stream));
  HEADRACE_TRY(check_sparq_slots(args.value()));
  Result<DeviceInfo> device = cpu_info();
  if (!device.ok()) return std::move(device.failure());
  return cpu::sparq_append(args.value(), device.value());
}

std::int64_t sparq_bytes(std::int64_t seqlen_k, std::int64_t head_dim, std::int64_t head_dim_v,
                         std::int64_t num_components, std::int64_t num_keys,
                         std::int64_t element_bytes) {
  for (const std::int64_t size :
       {seqlen_k, head_dim, head_dim_v, num_components, num_keys, element_bytes})
    if (size < 0) return 0;
  std::int64_t width = 0, sum = 0;
  if (__builtin_add_overflow(head_dim, head_dim_v, &width)) return INT64_MAX;
  const std::int64_t rows =
      saturating_product({std::min(num_keys, seqlen_k), width, element_bytes});
  if (seqlen_k <= num_keys) return rows;
  const std::int64_t components = saturating_product({seqlen_k, num_components, element_bytes});
  return __builtin_add_overflow(rows, components, &sum) ? INT64_MAX : sum;
}

}  // namespace headrace
