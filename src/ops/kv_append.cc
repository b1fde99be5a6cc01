#include "ops/kv_append.h"

#include "attention/tensor_checks.h"
#include "backends/cpu/elementwise/kv_append.h"
#include "backends/cuda/backend.h"
#include "core/device.h"
#include "ops/operand_checks.h"

namespace headrace {
namespace {

// Of every token, before anything is written: an index out of bounds would write elsewhere.
Status check_tokens(const KvAppendArgs& args) {
  const std::int64_t num_slots = args.num_pages * args.page_size;
  for (std::int64_t i = 0; i < args.num_tokens; ++i) {
    if (args.num_kv_heads > 0 && args.slot_mapping[i * args.slot_stride] >= num_slots)
      return invalid_argument(
          "slot_mapping[{}]={}: must be below {}, num_pages * page_size, or negative for a token "
          "that is not stored; pass page * page_size + slot (nothing was written)",
          i, args.slot_mapping[i * args.slot_stride], num_slots);
    const RecentRows& recent = args.recent;
    if (recent.slots != nullptr &&
        recent.slots[i * recent.slot_stride] >= recent.num_pages * recent.group)
      return invalid_argument(
          "recent_slots[{}]={}: must be below {}, num_recent_pages * group, or negative for a "
          "token "
          "that is not stored; pass page * group + index (nothing was written)",
          i, recent.slots[i * recent.slot_stride], recent.num_pages * recent.group);
    if (args.rot_dim > 0 && !has_angles(args, args.positions[i * args.position_stride]))
      return invalid_argument(
          "positions[{}]={}: must be 0 to {}, a row of cos and sin; pass tables of more positions "
          "(nothing was written)",
          i, args.positions[i * args.position_stride], args.tables.max_positions - 1);
  }
  return std::nullopt;
}

}  // namespace

Status kv_append(const headrace_kv_append_tensors& tensors,
                 const headrace_kv_append_options& options, const headrace_rope_options* rope,
                 Stream stream) {
  Result<KvAppendArgs> args = validate_kv_append(tensors, options, rope);
  if (!args.ok()) return std::move(args.failure());
  const headrace_tensor& first = is_given(tensors.q) ? tensors.q : tensors.k;
  if (first.device_type == HEADRACE_CUDA)
    return cuda::kv_append(args.value(), first.device_id, stream);
  HEADRACE_TRY(check_no_stream(stream));
  HEADRACE_TRY(check_tokens(args.value()));
  Result<DeviceInfo> device = cpu_info();
  if (!device.ok()) return std::move(device.failure());
  return cpu::kv_append(args.value(), device.value());
}

}  // namespace headrace
