// A build without CUDA has no lab kernels.
#include "lab/kernels.h"

namespace headrace::lab {

std::span<const Kernel> kernels() { return {}; }

}  // namespace headrace::lab
