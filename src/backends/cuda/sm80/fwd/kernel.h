// The portable forward kernel.
#pragma once

#include "core/kernel.h"

namespace headrace::cuda::sm80::fwd {

extern const Kernel kForwardKernel;  // "cuda_sm80_fwd"

}  // namespace headrace::cuda::sm80::fwd
