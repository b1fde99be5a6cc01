#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90 {

Status launch_hd128_sloped(const Call& call) {
  return launch_tile<kTile128, Scores::sloped>("cuda_sm90_fwd<bf16, 128, sloped>",
                                               "cuda_sm90_fwd<f16, 128, sloped>", call);
}

}  // namespace headrace::cuda::sm90
