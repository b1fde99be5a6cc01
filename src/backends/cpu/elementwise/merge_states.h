// A merge of attention states on the CPU.
#pragma once

#include "base/error.h"
#include "core/device.h"
#include "core/merge_states_args.h"

namespace headrace::cpu {

// Uses at most as many threads as the device has units. Allocates and checks nothing. Fails like
// parallel_for.
[[nodiscard]] Status merge_states(const MergeStatesArgs& args, const DeviceInfo& device);

}  // namespace headrace::cpu
