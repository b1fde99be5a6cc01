// Attention over quantised keys in pages.
#pragma once

#include "core/kernel.h"

namespace headrace::cuda::sm80::codes {

extern const Kernel kCodesKernel;

}  // namespace headrace::cuda::sm80::codes
