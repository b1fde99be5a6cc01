#include "backends/cuda/sm90/fwd/kernel.cuh"

namespace headrace::cuda::sm90::fwd {

Status launch_hd64_bias(const Call& call) {
  return launch_tile<kBias64, ScoreMod::bias>("cuda_sm90_fwd<bf16, 64, bias>",
                                              "cuda_sm90_fwd<f16, 64, bias>", call);
}

}  // namespace headrace::cuda::sm90::fwd
