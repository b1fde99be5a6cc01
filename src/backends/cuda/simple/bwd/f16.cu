#include "backends/cuda/simple/bwd/kernel.cuh"

namespace headrace::cuda::simple::bwd {

Status launch_backward_f16(const BackwardParams& params, Stream stream) {
  return launch_backward<__half>("cuda_simple<f16> backward", params, stream);
}

}  // namespace headrace::cuda::simple::bwd
