// Runs a plan.
#pragma once

#include "core/kernel.h"

namespace headrace {

// Checks the workspace, the machine and (on CPU, or with `checked`) cu_seqlens, then launches. The
// arguments must match the plan's problem. Allocates only on failure.
Status run(const Plan& plan, const AttentionArgs& args, Workspace workspace, Stream stream);

}  // namespace headrace
