#include "backends/cpu/kernels.h"

#include "backends/cpu/attention/flash/kernel.h"
#include "backends/cpu/reference/backward.h"
#include "backends/cpu/reference/forward.h"

namespace headrace::cpu {

std::span<const Kernel> forward_kernels() {
  static const Kernel kernels[] = {
#if defined(__x86_64__)
    flash::kAvx512Bf16Kernel,
    flash::kAvx512Kernel,
    flash::kAvx2Kernel,
#elif defined(__aarch64__)
    flash::kNeonKernel,
#endif
    flash::kScalarKernel,
    reference::kForwardKernel,
  };
  return kernels;
}

std::span<const Kernel> backward_kernels() {
  static const Kernel kernels[] = {
#if defined(__x86_64__)
    flash::kAvx512Bf16BackwardKernel,
    flash::kAvx512BackwardKernel,
    flash::kAvx2BackwardKernel,
#elif defined(__aarch64__)
    flash::kNeonBackwardKernel,
#endif
    flash::kScalarBackwardKernel,
    reference::kBackwardKernel,
  };
  return kernels;
}

}  // namespace headrace::cpu
