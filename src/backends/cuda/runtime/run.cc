// A call on a device: checks device and pointers, launches.
#include <cuda_runtime_api.h>

#include "backends/cuda/backend.h"
#include "backends/cuda/runtime/device.cuh"
#include "backends/cuda/runtime/pointer.cuh"
#include "backends/cuda/runtime/status.cuh"

namespace headrace::cuda {
namespace {

Status check_pointers(const AttentionArgs& args, Workspace workspace, int device_id) {
  const struct {
    const char* name;
    const void* data;
  } pointers[] = {{"q", args.q.data},
                  {"k", args.k.data},
                  {"v", args.v.data},
                  {"out", args.out.data},
                  {"lse", args.lse.data},
                  {"cu_seqlens_q", args.ragged.cu_seqlens_q},
                  {"cu_seqlens_k", args.ragged.cu_seqlens_k},
                  {"block_table", args.paged.block_table},
                  {"page_indptr", args.paged.page_indptr},
                  {"seqused_k", args.paged.seqused_k},
                  {"bias", args.bias.data},
                  {"mask", args.mask.data},
                  {"alibi_slopes", args.alibi_slopes},
                  {"tree_mask", args.tree_mask},
                  {"sinks", args.sinks},
                  {"probs", args.probs.data},
                  {"dout", args.gradients.dout.data},
                  {"dlse", args.gradients.dlse.data},
                  {"dq", args.gradients.dq.data},
                  {"dk", args.gradients.dk.data},
                  {"dv", args.gradients.dv.data},
                  {"dbias", args.gradients.dbias.data},
                  {"dsinks", args.gradients.dsinks},
                  {"workspace", workspace.data}};
  for (const auto& [name, data] : pointers) HEADRACE_TRY(check_pointer(name, data, device_id));
  return std::nullopt;
}

// A plan may be made for a device that is absent; it runs on a device of the same architecture.
Status check_plan(const Plan& plan) {
  const int device_id = plan.device.device_id;
  Result<DeviceInfo> device = device_info(device_id);
  if (!device.ok()) return std::move(device.failure());
  if (device.value().sm == plan.device.sm) return std::nullopt;
  return unsupported(
      "the plan was made for sm{} and cuda:{} is an sm{} ({}); make it for headrace_cuda_info()",
      plan.device.sm, device_id, device.value().sm, device.value().name);
}

}  // namespace

Status run(const Plan& plan, const AttentionArgs& args, Workspace workspace, Stream stream) {
  HEADRACE_TRY(check_plan(plan));
  const DeviceScope scope(plan.device.device_id);
  if (scope.status()) return scope.status();
  if (plan.schedule.workspace_bytes == 0) workspace = {};
  HEADRACE_TRY(check_pointers(args, workspace, plan.device.device_id));
  return plan.kernel->launch(plan, args, workspace, stream);
}

Result<HostLengths> read_lengths(const Plan& plan, const AttentionArgs& args, Stream stream) {
  if (Status bad = check_plan(plan)) return std::move(*bad);
  const DeviceScope scope(plan.device.device_id);
  if (scope.status()) return *scope.status();
  HostLengths host;
  const Problem& p = plan.problem;
  const auto rows = [&](std::int64_t stride, std::int64_t columns) {
    return p.batch == 0 ? std::int64_t{0} : (p.batch - 1) * stride + columns;
  };
  const struct {
    const char* name;
    const std::int32_t* from;
    std::int64_t count;
    std::vector<std::int32_t>& to;
  } copies[] = {
      {"cu_seqlens_q", args.ragged.cu_seqlens_q, p.batch + 1, host.cu_seqlens_q},
      {"cu_seqlens_k", args.ragged.cu_seqlens_k, p.batch + 1, host.cu_seqlens_k},
      {"seqused_k", args.paged.seqused_k, rows(args.paged.seqused_stride, 1), host.seqused_k},
      {"page_indptr", args.paged.page_indptr, p.batch + 1, host.page_indptr},
      {"block_table", args.paged.block_table,
       args.paged.page_indptr == nullptr ? rows(args.paged.stride_batch, p.max_pages)
                                         : args.paged.num_entries,
       host.block_table}};
  auto* cuda_stream = static_cast<cudaStream_t>(stream);
  for (const auto& [name, from, num_entries, to] : copies) {
    if (from == nullptr || num_entries == 0) continue;
    const auto count = static_cast<std::size_t>(num_entries);
    if (Status bad = check_pointer(name, from, plan.device.device_id)) return std::move(*bad);
    to.resize(count);
    if (Status bad = cuda_status(
            cudaMemcpyAsync(to.data(), from, count * sizeof *from, cudaMemcpyDefault, cuda_stream),
            "copying {} of {} entries to the host (checked=1)", name, count))
      return std::move(*bad);
  }
  if (Status bad = cuda_status(cudaStreamSynchronize(cuda_stream),
                               "waiting for the row lengths (checked=1) on stream {}", stream))
    return std::move(*bad);
  return host;
}

}  // namespace headrace::cuda
