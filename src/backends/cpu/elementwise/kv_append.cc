#include "backends/cpu/elementwise/kv_append.h"

#include <algorithm>

#include "backends/cpu/elementwise/elementwise.h"
#include "backends/cpu/thread_pool.h"
#include "base/math.h"

namespace headrace::cpu {
namespace {

struct Job {
  const KvAppendArgs& args;
  void (*op)(const KvAppendArgs&, RowRange tokens);
  std::int64_t task_tokens;
};

Status run(Job job, const DeviceInfo& device) {
  return parallel_for(
      ceil_div(job.args.num_tokens, job.task_tokens), device.num_units,
      [](void* context, std::int64_t task, int) {
        const auto& j = *static_cast<const Job*>(context);
        const std::int64_t first = task * j.task_tokens;
        j.op(j.args, {first, std::min(first + j.task_tokens, j.args.num_tokens)});
      },
      &job);
}

// Large compared with the cost of scheduling a task; a single token stays on the calling thread.
std::int64_t tokens_of_task(const KvAppendArgs& args) {
  constexpr std::int64_t kElements = 16384;
  const std::int64_t elements =
      (args.num_heads + args.num_kv_heads) * args.head_dim + args.num_kv_heads * args.head_dim_v;
  return std::max<std::int64_t>(1, kElements / std::max<std::int64_t>(1, elements));
}

}  // namespace

Status kv_append(const KvAppendArgs& args, const DeviceInfo& device) {
  if (args.num_tokens == 0) return std::nullopt;
  const ElementwiseOps& ops = elementwise_ops(device);
  HEADRACE_TRY(run({args, ops.kv_append, tokens_of_task(args)}, device));
  if (!has_zero_points(args.k_pages.dtype)) return std::nullopt;
  return run({args, ops.quantise_groups, tokens_of_task(args)}, device);
}

}  // namespace headrace::cpu
