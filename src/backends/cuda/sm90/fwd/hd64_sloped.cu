#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90 {

Status launch_hd64_sloped(const Call& call) {
  return launch_tile<kTile64, Scores::sloped>("cuda_sm90_fwd<bf16, 64, sloped>",
                                              "cuda_sm90_fwd<f16, 64, sloped>", call);
}

}  // namespace headrace::cuda::sm90
