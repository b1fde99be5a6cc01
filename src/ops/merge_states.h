// Merge of attention states over disjoint keys: validation of the caller's tensors and dispatch to
// the backend of their device.
#pragma once

#include "base/error.h"
#include "core/kernel.h"
#include "core/merge_states_args.h"

namespace headrace {

// Checks shapes, strides, dtypes, devices and overlaps. Reads no element of a tensor and allocates
// only for error messages.
Result<MergeStatesArgs> validate_merge_states(const headrace_merge_states_tensors& tensors);

// Validates and runs on the device of the tensors.
Status merge_states(const headrace_merge_states_tensors& tensors, Stream stream);

}  // namespace headrace
