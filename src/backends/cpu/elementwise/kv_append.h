// An append to a paged KV cache on the CPU.
#pragma once

#include "base/error.h"
#include "core/device.h"
#include "core/kv_append_args.h"

namespace headrace::cpu {

// Uses at most as many threads as the device has units. Allocates and checks nothing. Fails like
// parallel_for.
[[nodiscard]] Status kv_append(const KvAppendArgs& args, const DeviceInfo& device);

}  // namespace headrace::cpu
