#include "backends/cuda/sm80/bwd/launch.cuh"

namespace headrace::cuda::sm80::bwd {

Status launch_f32_hd128(const Call& call) {
  return launch_all<float, 128>("cuda_sm80_bwd<f32, 128>", call);
}

}  // namespace headrace::cuda::sm80::bwd
