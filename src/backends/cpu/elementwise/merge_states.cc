#include "backends/cpu/elementwise/merge_states.h"

#include <algorithm>

#include "backends/cpu/elementwise/elementwise.h"
#include "backends/cpu/thread_pool.h"
#include "base/math.h"

namespace headrace::cpu {
namespace {

struct Job {
  const MergeStatesArgs& args;
  const ElementwiseOps& ops;
  std::int64_t task_rows;
};

// Large compared with the cost of scheduling a task.
std::int64_t rows_of_task(const MergeStatesArgs& args) {
  constexpr std::int64_t kElements = 16384;
  return std::max<std::int64_t>(1, kElements / (args.num_states * args.head_dim_v));
}

}  // namespace

Status merge_states(const MergeStatesArgs& args, const DeviceInfo& device) {
  const std::int64_t rows = num_rows(args);
  if (rows == 0) return std::nullopt;
  Job job{args, elementwise_ops(device), rows_of_task(args)};
  return parallel_for(
      ceil_div(rows, job.task_rows), device.num_units,
      [](void* context, std::int64_t task, int) {
        const auto& j = *static_cast<const Job*>(context);
        const std::int64_t first = task * j.task_rows;
        j.ops.merge_states(j.args, {first, std::min(first + j.task_rows, num_rows(j.args))});
      },
      &job);
}

}  // namespace headrace::cpu
