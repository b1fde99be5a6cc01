#include "backends/cuda/sm80/bwd/launch.cuh"

namespace headrace::cuda::sm80::bwd {

Status launch_backward_f32_hd256(const BackwardParams& params, Stream stream) {
  return launch_backward<float, 256>("cuda_sm80_bwd<f32, 256>", params, stream);
}

}  // namespace headrace::cuda::sm80::bwd
