#include "backends/cuda/simple/bwd/kernel.cuh"

namespace headrace::cuda::simple::bwd {

Status launch_backward_f32(const BackwardParams& params, Stream stream) {
  return launch_backward<float>("cuda_simple<f32> backward", params, stream);
}

}  // namespace headrace::cuda::simple::bwd
