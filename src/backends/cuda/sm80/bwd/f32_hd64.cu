#include "backends/cuda/sm80/bwd/launch.cuh"

namespace headrace::cuda::sm80::bwd {

Status launch_f32_hd64(const Call& call) {
  return launch_all<float, 64>("cuda_sm80_bwd<f32, 64>", call);
}

}  // namespace headrace::cuda::sm80::bwd
