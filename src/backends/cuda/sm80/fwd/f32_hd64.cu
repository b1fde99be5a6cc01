#include "backends/cuda/sm80/fwd/launch.cuh"

namespace headrace::cuda::sm80::fwd {

Status launch_f32_hd64(const Call& call) {
  return launch_all<float, 64>("cuda_sm80_fwd<f32, 64>", call);
}

}  // namespace headrace::cuda::sm80::fwd
