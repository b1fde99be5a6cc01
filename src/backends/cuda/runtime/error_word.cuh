// One word per device (length_error.h). It stays set until headrace_check() reads it.
#pragma once

#include <cstdint>

#include "backends/cuda/runtime/length_error.h"
#include "base/error.h"

namespace headrace::cuda {

// Address on the current device; constant for the life of the process.
Result<std::uint32_t*> error_word(int device_id);

}  // namespace headrace::cuda
