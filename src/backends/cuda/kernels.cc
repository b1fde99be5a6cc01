// The CUDA kernels for attention forward, best first; the last one takes every problem.
#include <vector>

#include "backends/cuda/backend.h"
#include "backends/cuda/simple/kernel.h"
#include "backends/cuda/sm80/kernel.h"
#include "backends/cuda/sm90/fwd/kernel.h"

namespace headrace::cuda {

std::span<const Kernel> forward_kernels() {
  static const Kernel kernels[] = {
      sm80::kForwardKernel,
      simple::kForwardKernel,
  };
  return kernels;
}

// cuda_sm90_fwd joins the list when its last changes have passed every suite on a GPU (its README
// says what has run).
std::span<const Kernel> baseline_kernels() {
  static const std::vector<Kernel> kernels = [] {
    const auto of_simple = simple::baseline_kernels();
    std::vector<Kernel> all(of_simple.begin(), of_simple.end());
    all.push_back(sm90::kForwardKernel);
    return all;
  }();
  return kernels;
}

std::string architectures() { return HEADRACE_CUDA_ARCHITECTURES_TEXT; }

}  // namespace headrace::cuda
