#include "backends/cpu/attention/flash/backward.h"

#include <algorithm>

#include "backends/cpu/thread_pool.h"

namespace headrace::cpu::flash {
namespace {

constexpr size_t kLineBytes = 64;

}  // namespace

Schedule plan_backward(const IsaShape& isa, const Problem& p, const DeviceInfo& device,
                       const TuningConfig& config) {
  const int num_threads = chosen(config.num_threads, std::max(device.num_units, 1));
  const BackwardLayout layout = backward_layout(p, isa, num_threads, config.backward_tasks);
  const bool is_fused = layout.path == BackwardPath::fused;
  Schedule schedule{
      .tile_m = kBackwardRows,
      .tile_n = kBackwardKeys,
      .num_threads = num_threads,
      .workspace_bytes =
          static_cast<size_t>(num_threads * layout.scratch.total) * sizeof(float) + kLineBytes,
      .prob_dtype = isa.pair == 2 ? DType::bf16 : DType::f32,
      .note = is_fused ? "fused: five matmuls per tile, one task per batch entry and KV head"
                       : "separate: tasks for dK and dV, tasks for dQ, seven matmuls per tile; "
                         "too few (or too long) batch entries and KV heads for one task each"};
  schedule.kernel_plan.set(layout);
  return schedule;
}

std::vector<TuningConfig> backward_configs(const IsaShape& isa, const Problem& p,
                                           const DeviceInfo& device) {
  std::vector<TuningConfig> all;
  for (const int32_t num_threads : tuned_threads(device)) {
    const int threads = chosen(num_threads, std::max(device.num_units, 1));
    const bool is_fused = backward_layout(p, isa, threads).path == BackwardPath::fused;
    const int32_t other = is_fused ? kSeparateTasks : fits_fused(p, isa) ? kFusedTasks : 0;
    for (const int32_t tasks : {0, other}) {
      const TuningConfig config{.num_threads = num_threads, .backward_tasks = tasks};
      if (config != TuningConfig{} && std::find(all.begin(), all.end(), config) == all.end())
        all.push_back(config);
    }
  }
  return all;
}

Status launch_backward(const Instance& instance, const Plan& plan, const AttentionArgs& args,
                       void* workspace) {
  const Problem& p = plan.problem;
  const size_t past_line = reinterpret_cast<uintptr_t>(workspace) % kLineBytes;
  BackwardCall call{.problem = &p,
                    .args = &args,
                    .layout = plan.schedule.kernel_plan.get<BackwardLayout>(),
                    .dbias_tiles = dbias_tiles(p, args.gradients.dbias),
                    .num_qkv_tasks = 0,
                    .worker_scratch = reinterpret_cast<float*>(
                        static_cast<char*>(workspace) + (kLineBytes - past_line) % kLineBytes)};
  call.num_qkv_tasks = p.batch * p.num_kv_heads * backward_units(call.layout);
  const int64_t num_tasks =
      call.num_qkv_tasks + call.dbias_tiles.count() + (p.has_dsinks ? p.num_heads : 0);
  return parallel_for(num_tasks, plan.schedule.num_threads, instance.task_body[p.dtype], &call);
}

}  // namespace headrace::cpu::flash
