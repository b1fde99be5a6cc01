#include "backends/cuda/simple/fwd/kernel.h"

#include <algorithm>

#include "backends/cuda/common/constants.h"
#include "backends/cuda/runtime/error_word.cuh"
#include "backends/cuda/simple/fwd/launch.h"
#include "base/math.h"

namespace headrace::cuda::simple::fwd {
namespace {

std::int64_t num_rows_of(const Problem& p) { return p.batch * p.num_heads * p.seqlen_q; }

Schedule plan(const Problem& p, const DeviceInfo& device, const TuningConfig&) {
  constexpr std::int64_t kCtasPerUnit = 64;  // several waves, to balance rows of different length
  Schedule schedule;
  schedule.tile_m = 1;
  schedule.tile_n = 64;
  schedule.num_ctas = std::clamp<std::int64_t>(ceil_div<std::int64_t>(num_rows_of(p), kWarps), 1,
                                               kCtasPerUnit * device.num_units);
  schedule.note =
      format_text("one warp per row, two passes over the keys, {} arithmetic; every feature, slow",
                  dtype_of(p) == DType::f64 ? "double" : "float");
  return schedule;
}

Status launch(const Plan& plan, const AttentionArgs& args, Workspace, Stream stream) {
  Result<std::uint32_t*> word = error_word(plan.device.device_id);
  if (!word.ok()) return std::move(word.failure());
  const Params params{.problem = plan.problem,
                      .args = args,
                      .num_rows = num_rows_of(plan.problem),
                      .lengths = lengths_of(plan.problem, args, word.value()),
                      .used_keys = used_keys_of(plan.problem, args)};
  switch (dtype_of(plan.problem)) {
    case DType::f32:
      return launch_f32(params, plan.schedule.num_ctas, stream);
    case DType::f16:
      return launch_f16(params, plan.schedule.num_ctas, stream);
    case DType::bf16:
      return launch_bf16(params, plan.schedule.num_ctas, stream);
    default:
      return launch_f64(params, plan.schedule.num_ctas, stream);
  }
}

}  // namespace

std::string refuses_device(const Problem&, const DeviceInfo& device) {
  if (device.sm >= kMinSm) return {};
  return format_text("needs a GPU of sm{} or newer, not sm{}", kMinSm, device.sm);
}

const Kernel kForwardKernel = {
    .name = "cuda_simple",
    .summary = "one warp per row, f32 f16 bf16 f64, every feature, exact with NaN; any GPU, slow",
    .refuses = refuses_device,
    .plan = plan,
    .launch = launch,
};

}  // namespace headrace::cuda::simple::fwd
