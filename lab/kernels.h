// Kernels to read and to compare with: tests run them by name, the library does not have them.
#pragma once

#include <span>

#include "core/kernel.h"

namespace headrace::lab {

// "cuda_teaching" and "cuda_materialised": FlashAttention's algorithm in 100 lines, and standard
// attention. Plain problems only. Empty in a build without CUDA.
std::span<const Kernel> kernels();

}  // namespace headrace::lab
