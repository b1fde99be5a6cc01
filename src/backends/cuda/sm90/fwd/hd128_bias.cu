#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_hd128_bias(const Call& call) {
  return launch_tile<kBias128, ScoreMod::bias>("cuda_sm90_fwd<bf16, 128, bias>",
                                               "cuda_sm90_fwd<f16, 128, bias>", call);
}

}  // namespace headrace::cuda::sm90::fwd
