// One word on each device that kernels set where lengths on the device break a rule. It stays set
// until headrace_check() reads it.
#pragma once

#include <cstdint>

#include "base/error.h"

namespace headrace::cuda {

// Which rule, in the two high bits; the batch entry below (its low 30 bits). 0: all is well.
enum class LengthError : std::uint32_t { cu_seqlens_q = 1, cu_seqlens_k = 2, tree_mask = 3 };

// Address on the current device; the same for the life of the process.
Result<std::uint32_t*> error_word(int device_id);

}  // namespace headrace::cuda
