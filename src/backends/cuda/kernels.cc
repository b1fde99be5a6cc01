// The CUDA kernels for attention in order of preference; the last of a list takes every problem.
#include "backends/cuda/backend.h"
#include "backends/cuda/simple/bwd/kernel.h"
#include "backends/cuda/simple/fwd/kernel.h"
#include "backends/cuda/sm80/bwd/kernel.h"
#include "backends/cuda/sm80/codes/kernel.h"
#include "backends/cuda/sm80/fwd/kernel.h"
#include "backends/cuda/sm90/bwd/kernel.h"
#include "backends/cuda/sm90/decode/kernel.h"
#include "backends/cuda/sm90/fwd/kernel.h"

namespace headrace::cuda {

std::span<const Kernel> forward_kernels() {
  // One kernel a line.
  // clang-format off
  static const Kernel kernels[] = {
      sm90::decode::kDecodeKernel,
      sm90::fwd::kForwardKernel,
      sm80::codes::kCodesKernel,
      sm80::fwd::kForwardKernel,
      simple::fwd::kForwardKernel,
  };
  // clang-format on
  return kernels;
}

std::span<const Kernel> backward_kernels() {
  static const Kernel kernels[] = {
      sm90::bwd::kBackwardKernel,
      sm80::bwd::kBackwardKernel,
      simple::bwd::kBackwardKernel,
  };
  return kernels;
}

std::string architectures() { return HEADRACE_CUDA_ARCHITECTURES_TEXT; }

}  // namespace headrace::cuda
