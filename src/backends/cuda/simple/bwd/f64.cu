#include "backends/cuda/simple/bwd/kernel.cuh"

namespace headrace::cuda::simple::bwd {

Status launch_backward_f64(const BackwardParams& params, Stream stream) {
  return launch_backward<double>("cuda_simple<f64> backward", params, stream);
}

}  // namespace headrace::cuda::simple::bwd
