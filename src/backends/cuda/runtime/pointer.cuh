// Whether a pointer that a caller handed in can be used on a device.
#pragma once

#include <cuda_runtime_api.h>

#include "base/error.h"

namespace headrace::cuda {

// Device memory of this device, managed memory, and pinned host memory (slow, but it works). Null
// is fine. `name`: of the argument, for the error.
Status check_pointer(const char* name, const void* data, int device_id);

}  // namespace headrace::cuda
