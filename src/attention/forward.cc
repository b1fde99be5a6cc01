#include "attention/forward.h"

#include <new>

#include "attention/validate.h"
#include "core/device.h"

namespace headrace {
namespace {

Status check_workspace(const Plan& plan, const Workspace& workspace) {
  const std::size_t needed = plan.schedule.workspace_bytes;
  const std::size_t given = workspace.data == nullptr ? 0 : workspace.bytes;
  if (given >= needed) return std::nullopt;
  return invalid_argument(
      "workspace of {} bytes{}: kernel {} needs at least {} bytes; allocate "
      "headrace_plan_workspace_bytes() bytes",
      workspace.bytes, workspace.data == nullptr ? " at NULL" : "", plan.kernel->name, needed);
}

// A plan can be made for any device but only runs if the CPU has its instruction sets.
Status check_machine(const Plan& plan) {
  constexpr std::uint32_t kRates = HEADRACE_ISA_AVX512_BF16_FAST;
  const std::uint32_t missing = plan.device.cpu_isa & ~detected_cpu_isa() & ~kRates;
  if (missing == 0) return std::nullopt;
  return unsupported(
      "the plan was made for [{}] but this CPU only has {}; make a plan for headrace_cpu_info()",
      device_text(plan.device), cpu_isa_name(detected_cpu_isa()));
}

// checked: copies lengths and block_table from the device and validates them before the launch.
Status check_device_lengths(const Plan& plan, const AttentionArgs& args, Stream stream) {
  if (!plan.problem.checked || !has_device_lengths(plan.problem)) return std::nullopt;
  Result<cuda::HostLengths> host = cuda::read_lengths(plan, args, stream);
  if (!host.ok()) return std::move(host.failure());
  AttentionArgs on_host = args;
  on_host.ragged = {.cu_seqlens_q = host.value().cu_seqlens_q.data(),
                    .cu_seqlens_k = host.value().cu_seqlens_k.data()};
  on_host.paged.block_table = host.value().block_table.data();
  if (args.paged.page_indptr != nullptr)
    on_host.paged.page_indptr = host.value().page_indptr.data();
  on_host.paged.seqused_k = host.value().seqused_k.data();
  return validate_lengths(plan.problem, on_host);
}

// A backward without queries still writes the gradients of k, v, bias and sinks.
bool has_nothing_to_write(const Problem& p) {
  if (is_backward(p)) return false;
  return p.num_heads == 0 || p.batch == 0 || (p.is_ragged ? p.total_q : p.seqlen_q) == 0;
}

}  // namespace

Status run(const Plan& plan, const AttentionArgs& args, Workspace workspace, Stream stream) {
  if (auto bad = check_workspace(plan, workspace)) return bad;
  if (plan.device.device_type == HEADRACE_CPU) {
    if (stream != nullptr)
      return invalid_argument("stream={}: must be NULL on CPU; pass NULL", stream);
    if (auto bad = check_machine(plan)) return bad;
    if (auto bad = validate_lengths(plan.problem, args)) return bad;
  } else if (auto bad = check_device_lengths(plan, args, stream)) {
    return bad;
  }
  if (has_nothing_to_write(plan.problem)) return std::nullopt;
  if (plan.device.device_type == HEADRACE_CUDA) return cuda::run(plan, args, workspace, stream);
  return plan.kernel->launch(plan, args, workspace, stream);
}

Status OwnWorkspace::reserve(const Plan& plan, Stream stream) {
  constexpr std::size_t kAlignment = 64;
  const std::size_t needed = plan.schedule.workspace_bytes;
  if (needed <= bytes_) return std::nullopt;
  bytes_ = 0;
  if (plan.device.device_type == HEADRACE_CUDA) {
    Result<cuda::Scratch> scratch = cuda::allocate_scratch(needed, plan.device.device_id, stream);
    if (!scratch.ok()) return std::move(scratch.failure());
    device_ = std::move(scratch.value());
  } else {
    if (needed > PTRDIFF_MAX - kAlignment) throw std::bad_alloc();
    const std::size_t bytes = (needed + kAlignment - 1) / kAlignment * kAlignment;
    host_.reset(std::aligned_alloc(kAlignment, bytes));
    if (host_ == nullptr)
      return Failure{ErrorCode::out_of_memory,
                     format_text("workspace: {} bytes could not be allocated; pass a workspace or "
                                 "split the call",
                                 needed)};
  }
  bytes_ = needed;
  return std::nullopt;
}

}  // namespace headrace
