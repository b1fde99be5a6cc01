// Kernel selection and planning. Pure functions: no pointers, no device access.
#pragma once

#include <span>
#include <string>

#include "base/error.h"
#include "core/kernel.h"
#include "core/plan.h"

namespace headrace::tune {
class Table;
}

namespace headrace {

// The kernels of a device type (headrace_device_type) and phase (headrace_phase), in order of
// preference. Empty if this build has none.
std::span<const Kernel> kernels_of(std::int32_t device_type, std::int32_t phase);

// Selects the first kernel that supports the problem. Fails with `unsupported` and each kernel's
// reason if none does, or if only the fallback does and strict_fallback is set. HEADRACE_KERNEL
// forces a kernel by name; a forced kernel is never a fallback.
// The kernel's choices are those of the table of the device that the process uses, if any.
Result<Plan> plan_attention(const Problem& problem, const DeviceInfo& device);
// `table`: tuned choices of the device; null: none.
Result<Plan> plan_attention(const Problem& problem, const DeviceInfo& device,
                            std::span<const Kernel> kernels, const tune::Table* table = nullptr);
// The first one for a problem that validate() or check_problem() returned, so that a call checks it
// once.
Result<Plan> plan_checked(const Problem& checked, const DeviceInfo& device);
// The same plan with other choices of its kernel, which offers them. Fails if the workspace does
// not fit 64 bits.
Status choose_config(const TuningConfig& config, Plan& plan);

// "bf16 batch 2, seqlen_q 128, seqlen_k 128, 8 heads (2 kv), head_dim 64, causal bottom-right"
std::string problem_text(const Problem& problem);

// Multi-line report: problem, device, each kernel's reason, schedule, NaN propagation, determinism.
std::string explain(const Plan& plan);

}  // namespace headrace
