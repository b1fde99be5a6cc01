#include "backends/cuda/simple/bwd/kernel.h"

#include <algorithm>

#include "backends/cuda/runtime/error_word.cuh"
#include "backends/cuda/simple/bwd/params.h"
#include "backends/cuda/simple/fwd/kernel.h"
#include "base/math.h"

namespace headrace::cuda::simple::bwd {
namespace {

std::size_t real_bytes(const Problem& p) {
  return dtype_of(p) == DType::f64 ? sizeof(double) : sizeof(float);
}
std::int64_t num_rows_of(const Problem& p) { return p.batch * p.num_heads * p.seqlen_q; }

Schedule plan(const Problem& p, const DeviceInfo& device, const TuningConfig&) {
  constexpr std::int64_t kCtasPerUnit = 64;  // several waves, to balance rows of different length
  Schedule schedule;
  schedule.tile_m = 1;
  schedule.tile_n = 64;
  schedule.num_ctas = kCtasPerUnit * std::max(device.num_units, 1);
  schedule.workspace_bytes =
      (static_cast<std::size_t>(num_rows_of(p)) + 1) * real_bytes(p);  // one more for alignment
  schedule.note = format_text(
      "one warp per query, per key, per element of dbias; no atomics; {} arithmetic; every "
      "feature, "
      "slow",
      dtype_of(p) == DType::f64 ? "double" : "float");
  return schedule;
}

// Axes of stride 0 in the caller's dbias broadcast and are summed over.
BiasShape bias_shape_of(const Problem& p, const ScoreOperand& dbias) {
  if (dbias.data == nullptr) return {};
  const auto size = [](std::int64_t stride, std::int64_t whole) {
    return stride == 0 ? std::int64_t{1} : whole;
  };
  return {.batch = p.is_ragged ? 1 : size(dbias.stride_batch, p.batch),
          .heads = size(dbias.stride_head, p.num_heads),
          .rows = size(dbias.stride_q, p.is_ragged ? p.total_q : p.seqlen_q),
          .keys = size(dbias.stride_k, p.seqlen_k)};
}

Status launch(const Plan& plan, const AttentionArgs& args, Workspace workspace, Stream stream) {
  const Problem& p = plan.problem;
  Result<std::uint32_t*> word = error_word(plan.device.device_id);
  if (!word.ok()) return std::move(word.failure());
  const auto address = reinterpret_cast<std::uintptr_t>(workspace.data);
  const std::uintptr_t aligned = ceil_div(address, real_bytes(p)) * real_bytes(p);
  const BackwardParams params{.forward = {.problem = p,
                                          .args = args,
                                          .num_rows = num_rows_of(p),
                                          .lengths = lengths_of(p, args, word.value()),
                                          .used_keys = used_keys_of(p, args)},
                              .num_keys = p.batch * p.num_kv_heads * p.seqlen_k,
                              .num_ctas = plan.schedule.num_ctas,
                              .bias_shape = bias_shape_of(p, args.gradients.dbias),
                              .d = reinterpret_cast<void*>(aligned)};
  switch (dtype_of(p)) {
    case DType::f32:
      return launch_backward_f32(params, stream);
    case DType::f16:
      return launch_backward_f16(params, stream);
    case DType::bf16:
      return launch_backward_bf16(params, stream);
    default:
      return launch_backward_f64(params, stream);
  }
}

}  // namespace

const Kernel kBackwardKernel = {
    .name = "cuda_simple",
    .summary =
        "one warp per query and per key, f32 f16 bf16 f64, every feature, no atomics; any GPU, "
        "slow",
    .refuses = fwd::refuses_device,
    .plan = plan,
    .launch = launch,
};

}  // namespace headrace::cuda::simple::bwd
