// Selects the instruction set and distributes rows to threads.
#include "backends/cpu/softmax/softmax.h"

#include <algorithm>

#include "backends/cpu/thread_pool.h"
#include "base/math.h"

namespace headrace::cpu {

namespace scalar {
extern const SoftmaxOps kSoftmaxOps;
}
namespace avx2 {
extern const SoftmaxOps kSoftmaxOps;
}
namespace avx512 {
extern const SoftmaxOps kSoftmaxOps;
}
namespace neon {
extern const SoftmaxOps kSoftmaxOps;
}

std::span<const SoftmaxOps* const> all_softmax_ops() {
  static constexpr const SoftmaxOps* kAll[] = {
#if defined(__x86_64__)
    &avx512::kSoftmaxOps,
    &avx2::kSoftmaxOps,
#elif defined(__aarch64__)
    &neon::kSoftmaxOps,
#endif
    &scalar::kSoftmaxOps,
  };
  return kAll;
}

namespace {

const SoftmaxOps& softmax_ops(const DeviceInfo& device) {
  for (const SoftmaxOps* ops : all_softmax_ops())
    if ((device.cpu_isa & ops->cpu_isa) == ops->cpu_isa) return *ops;
  return scalar::kSoftmaxOps;
}

// Rows per task: large compared with the cost of scheduling a task, and a multiple of the rows that
// are copied together.
std::int64_t rows_of_task(const RowSpace& rows) {
  constexpr std::int64_t kElements = 32768;
  return round_up<std::int64_t>(
      std::max<std::int64_t>(1, kElements / std::max<std::int64_t>(1, rows.length)), kPanelRows);
}

template <class Args>
struct Job {
  const Args& args;
  void (*run)(const Args&, RowRange);
  std::int64_t task_rows;
};

template <class Args>
Status run_rows(const Args& args, void (*run)(const Args&, RowRange), const DeviceInfo& device) {
  const std::int64_t num_rows = args.rows.num_rows;
  if (num_rows == 0) return std::nullopt;
  // Few rows: one task per thread.
  const std::int64_t fair = ceil_div<std::int64_t>(num_rows, std::max(device.num_units, 1));
  Job<Args> job{args, run, std::min(rows_of_task(args.rows), fair)};
  return parallel_for(
      ceil_div(num_rows, job.task_rows), device.num_units,
      [](void* context, std::int64_t task, int) {
        const auto& j = *static_cast<const Job<Args>*>(context);
        const std::int64_t first = task * j.task_rows;
        j.run(j.args, {first, std::min(first + j.task_rows, j.args.rows.num_rows)});
      },
      &job);
}

}  // namespace

Status softmax_forward(const SoftmaxForwardArgs& args, const DeviceInfo& device) {
  return run_rows(args, softmax_ops(device).forward, device);
}

Status softmax_backward(const SoftmaxBackwardArgs& args, const DeviceInfo& device) {
  return run_rows(args, softmax_ops(device).backward, device);
}

}  // namespace headrace::cpu
