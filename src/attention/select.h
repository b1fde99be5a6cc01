// Which kernel takes a problem, and how it will run. Pure: no pointers, touches no device.
#pragma once

#include <span>
#include <string>

#include "base/error.h"
#include "core/kernel.h"
#include "core/plan.h"

namespace headrace {

// The kernels of a device type (headrace_device_type) for a phase (headrace_phase), in the order in
// which they are asked. Empty where this build has none.
std::span<const Kernel> kernels_of(std::int32_t device_type, std::int32_t phase);

// Asks the kernels in order; the first that accepts makes the plan. Where none does, or only the
// last one would although strict_fallback is set: unsupported, with the reason of each.
// HEADRACE_KERNEL forces one by name, which then does not count as a fallback.
Result<Plan> plan_attention(const Problem& problem, const DeviceInfo& device);
Result<Plan> plan_attention(const Problem& problem, const DeviceInfo& device,
                            std::span<const Kernel> kernels);

// "bf16 batch 2, seqlen_q 128, seqlen_k 128, 8 heads (2 kv), head_dim 64, causal bottom-right"
std::string problem_text(const Problem& problem);

// Many lines: the problem, the device, each kernel's reason, the schedule, what holds for NaNs and
// for determinism.
std::string explain(const Plan& plan);

}  // namespace headrace
