#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_hd256_bias(const Call& call) {
  return launch_tile<kBias256, ScoreMod::bias>("cuda_sm90_fwd<bf16, 256, bias>",
                                               "cuda_sm90_fwd<f16, 256, bias>", call);
}

}  // namespace headrace::cuda::sm90::fwd
