#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90 {

Status launch_hd128_capped(const Call& call) {
  return launch_tile<kCapped128, Scores::capped>("cuda_sm90_fwd<bf16, 128, capped>",
                                                 "cuda_sm90_fwd<f16, 128, capped>", call);
}

}  // namespace headrace::cuda::sm90
