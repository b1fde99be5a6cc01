#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90 {

Status launch_hd256_capped(const Call& call) {
  return launch_tile<kCapped256, Scores::capped>("cuda_sm90_fwd<bf16, 256, capped>",
                                                 "cuda_sm90_fwd<f16, 256, capped>", call);
}

}  // namespace headrace::cuda::sm90
