// A call of the flash backward, and its compiled instances.
#pragma once

#include "backends/cpu/attention/flash/backward_config.h"
#include "backends/cpu/attention/flash/flash.h"
#include "base/error.h"
#include "core/kernel.h"

namespace headrace::cpu::flash {

// The data of all tasks; shared by the workers and immutable while they run. Tasks are independent
// and write disjoint elements. Order: gradients of q, k and v, then of bias, then of sinks.
struct BackwardCall {
  const Problem* problem;
  const AttentionArgs* args;
  BackwardLayout layout;
  DbiasTiles dbias_tiles;
  int64_t num_qkv_tasks;
  float* worker_scratch;  // [num_workers, scratch.total], 64-byte aligned
};

// Its KernelPlan is a BackwardLayout.
Schedule plan_backward(const IsaShape& isa, const Problem& p, const DeviceInfo& device,
                       const TuningConfig& config);
std::vector<TuningConfig> backward_configs(const IsaShape& isa, const Problem& p,
                                           const DeviceInfo& device);
[[nodiscard]] Status launch_backward(const Instance& instance, const Plan& plan,
                                     const AttentionArgs& args, void* workspace);

namespace scalar {
extern const Instance kBackwardInstance;
}
namespace avx2 {
extern const Instance kBackwardInstance;
}
namespace avx512 {
extern const Instance kBackwardInstance;
}
namespace avx512bf16 {
extern const Instance kBackwardInstance;
}
namespace neon {
extern const Instance kBackwardInstance;
}

}  // namespace headrace::cpu::flash
