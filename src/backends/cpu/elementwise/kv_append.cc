#include "backends/cpu/elementwise/kv_append.h"

#include <algorithm>

#include "backends/cpu/elementwise/elementwise.h"
#include "backends/cpu/thread_pool.h"
#include "base/math.h"

namespace headrace::cpu {
namespace {

struct Job {
  const KvAppendArgs& args;
  const ElementwiseOps& ops;
  std::int64_t task_tokens;
};

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
  Job job{args, elementwise_ops(device), tokens_of_task(args)};
  return parallel_for(
      ceil_div(args.num_tokens, job.task_tokens), device.num_units,
      [](void* context, std::int64_t task, int) {
        const auto& j = *static_cast<const Job*>(context);
        const std::int64_t first = task * j.task_tokens;
        j.ops.kv_append(j.args, {first, std::min(first + j.task_tokens, j.args.num_tokens)});
      },
      &job);
}

}  // namespace headrace::cpu
