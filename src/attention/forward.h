// Runs a plan.
#pragma once

#include "core/kernel.h"

namespace headrace {

// Checks the workspace, the machine and (on CPU, or with `checked`) the row lengths, then launches.
// The arguments were validated against the plan's problem. No allocation unless something is wrong.
Status run(const Plan& plan, const AttentionArgs& args, Workspace workspace, Stream stream);

}  // namespace headrace
