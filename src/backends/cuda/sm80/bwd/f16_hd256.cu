#include "backends/cuda/sm80/bwd/launch.cuh"

namespace headrace::cuda::sm80::bwd {

Status launch_f16_hd256(const Call& call) {
  return launch_all<__half, 256>("cuda_sm80_bwd<f16, 256>", call);
}

}  // namespace headrace::cuda::sm80::bwd
