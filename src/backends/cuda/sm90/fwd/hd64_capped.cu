#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90 {

Status launch_hd64_capped(const Call& call) {
  return launch_tile<kCapped64, Scores::capped>("cuda_sm90_fwd<bf16, 64, capped>",
                                                "cuda_sm90_fwd<f16, 64, capped>", call);
}

}  // namespace headrace::cuda::sm90
