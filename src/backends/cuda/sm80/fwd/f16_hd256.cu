#include "backends/cuda/sm80/fwd/launch.cuh"

namespace headrace::cuda::sm80::fwd {

Status launch_f16_hd256(const Call& call) {
  return launch_all<__half, 256>("cuda_sm80_fwd<f16, 256>", call);
}

}  // namespace headrace::cuda::sm80::fwd
