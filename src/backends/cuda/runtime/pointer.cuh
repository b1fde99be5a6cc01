// Whether a device can access a pointer of the caller.
#pragma once

#include <cuda_runtime_api.h>

#include "base/error.h"

namespace headrace::cuda {

// Accepts memory of this device, managed memory, pinned host memory (slow) and null. `name`: the
// argument's name in the error.
Status check_pointer(const char* name, const void* data, int device_id);

}  // namespace headrace::cuda
