// "cuda_sm90_decode": attention of few query rows over many keys.
#pragma once

#include "core/kernel.h"

namespace headrace::cuda::sm90::decode {

extern const Kernel kDecodeKernel;

}  // namespace headrace::cuda::sm90::decode
