// Launch of the merge kernel.
#pragma once

#include "base/error.h"
#include "core/kernel.h"
#include "core/merge_states_args.h"

namespace headrace::cuda::merge {

// Enqueues the kernel; there is at least one row.
Status launch(const MergeStatesArgs& args, Stream stream);

}  // namespace headrace::cuda::merge
