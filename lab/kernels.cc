#include "lab/kernels.h"

#include "backends/cuda/common/constants.h"
#include "base/math.h"
#include "lab/launch.h"

namespace headrace::lab {
namespace {

constexpr std::int64_t kMaxGrid = 65535;  // along y and z

// Features that both kernels lack.
std::string refuses_all_but_plain(const Problem& p, const DeviceInfo& device) {
  if (device.sm < cuda::kMinSm)
    return format_text("needs a GPU of sm{} or newer, not sm{}", cuda::kMinSm, device.sm);
  if (dtype_of(p) == DType::f64) return "supports f32, f16 and bf16, not f64";
  if (p.is_ragged) return "supports dense batches only";
  if (has_general_scores(p) || p.has_sinks || p.has_probs || p.window_left >= 0 ||
      p.window_right >= 0)
    return "supports scale and causal mask only";
  if (p.num_heads * p.batch > kMaxGrid || p.seqlen_q > 16 * kMaxGrid)
    return "supports at most 65535 heads and 1048560 queries";
  return {};
}

std::string teaching_refuses(const Problem& p, const DeviceInfo& device) {
  if (p.head_dim != p.head_dim_v || p.head_dim > kTeachingDim)
    return format_text("supports equal head dims up to {}", kTeachingDim);
  return refuses_all_but_plain(p, device);
}

Schedule teaching_plan(const Problem&, const DeviceInfo&, const TuningConfig&) {
  Schedule schedule;
  schedule.tile_m = 128;
  schedule.tile_n = 32;
  schedule.note = "one thread per query, K and V in shared memory; written to be read";
  return schedule;
}

Schedule materialised_plan(const Problem& p, const DeviceInfo&, const TuningConfig&) {
  constexpr std::size_t kAlignment = 4;
  Schedule schedule;
  schedule.workspace_bytes =
      static_cast<std::size_t>(saturating_product(
          {p.batch, p.num_heads, p.seqlen_q, p.seqlen_k, std::int64_t{sizeof(float)}})) +
      kAlignment;
  schedule.note = "writes the matrix of scores to memory";
  return schedule;
}

float* aligned(void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  return reinterpret_cast<float*>((address + alignof(float) - 1) / alignof(float) * alignof(float));
}

}  // namespace

std::span<const Kernel> kernels() {
  static const Kernel list[] = {
      {.name = "cuda_teaching",
       .summary = "FlashAttention in 100 lines; scale and causal mask, equal head dims up to 64",
       .refuses = teaching_refuses,
       .plan = teaching_plan,
       .launch = [](const Plan& plan, const AttentionArgs& args, Workspace,
                    Stream stream) { return launch_teaching(plan.problem, args, stream); }},
      {.name = "cuda_materialised",
       .summary = "standard attention, writes the matrix of scores; scale and causal mask",
       .refuses = refuses_all_but_plain,
       .plan = materialised_plan,
       .launch =
           [](const Plan& plan, const AttentionArgs& args, Workspace workspace, Stream stream) {
             return launch_materialised(plan.problem, args, aligned(workspace.data), stream);
           }},
  };
  return list;
}

}  // namespace headrace::lab
